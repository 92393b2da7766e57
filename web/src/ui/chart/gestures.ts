/** What the mouse does on a chart: zoom, pan, and show all again. */

import uPlot from "uplot";
import { type Range, panned } from "../../lib/table";
import { rangeOf } from "../zoom";

/** A drag shows the chosen part of x in all charts of the group, and of y in this one. A double click shows all again. */
export function zooming(sync: string, vertical: { current: Range | null }): uPlot.Cursor.Bind {
  return {
    mouseup: (u, _, handler) => (event) => {
      handler(event);
      const { left, top, width, height } = u.select;
      if (width === 0 && height === 0) return null;
      if (width > 0 && width < u.over.clientWidth) rangeOf(sync).value = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
      if (height > 0 && height < u.over.clientHeight) {
        vertical.current = [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
        u.setScale("y", { min: vertical.current[0], max: vertical.current[1] });
      }
      for (const plot of uPlot.sync(sync).plots) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      return null;
    },
    dblclick: (u) => () => {
      rangeOf(sync).value = null;
      vertical.current = null;
      u.setData(u.data);
      return null;
    },
  };
}

/** Moves all charts of one group along x while Shift is held. */
export function panning(sync: string): uPlot.Plugin {
  const start = (u: uPlot, event: MouseEvent) => {
    if (!event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const { min: left, max: right } = u.scales.x!;
    const width = u.over.clientWidth;
    const isLog = u.scales.x!.distr === 3;
    const move = (other: MouseEvent) => {
      rangeOf(sync).value = panned([left!, right!], (event.clientX - other.clientX) / width, isLog);
    };
    const end = () => document.removeEventListener("mousemove", move);
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", end, { once: true });
  };
  return { hooks: { init: (u: uPlot) => u.over.addEventListener("mousedown", (event) => start(u, event), { capture: true }) } };
}
