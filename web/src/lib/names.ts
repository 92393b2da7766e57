/** Names as one text with commas. A comma in a name, as in `f1@0.5,0.9`, is written behind a backslash. */

export const joinNames = (names: readonly string[]): string => names.map((name) => name.replace(/[\\,]/g, "\\$&")).join(",");

export const splitNames = (text: string): string[] => [...text.matchAll(/((?:\\[\\,]|[^,])*)(?:,|$)/g)].map(([, name]) => name!.replace(/\\([\\,])/g, "$1")).filter(Boolean);
