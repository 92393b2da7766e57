/** The fields of the form: those of an object of the spec, those of a component, and one by itself. */

import { useState } from "preact/hooks";
import type { Problem } from "../../api/client";
import { type Field, type JsonObject, argsFor, asComponent, component, fieldsOf, getAt, parseField, problemsAt, setAt } from "../../lib/form";

export interface Described {
  name: string;
  summary: string;
  args: Parameters<typeof fieldsOf>[0];
}

export const textField = (name: string, defaultText = ""): Field => ({ name, kind: "text", choices: [], description: "", defaultText, isRequired: false });

interface SpecFieldsProps {
  title: string;
  path: string;
  fields: Field[] | undefined;
  first: string[];
  spec: JsonObject;
  problems: Problem[];
  change: (path: string[], value: unknown) => void;
}

/** One object of the spec as fields: the usual ones, and the others when somebody opens them. */
export function SpecFields({ title, path, fields = [], first, spec, problems, change }: SpecFieldsProps) {
  const [isOpen, setOpen] = useState(false);
  const rest = fields.filter((field) => !first.includes(field.name));
  const row = (field: Field) => (
    <FieldRow key={field.name} field={field} value={getAt(spec, [path, field.name])} problems={problemsAt(problems, `/${path}/${field.name}`)} onChange={(value) => change([path, field.name], value)} />
  );
  return (
    <fieldset>
      <legend>{title}</legend>
      {first.map((name) => row(fields.find((field) => field.name === name) ?? { ...textField(name), kind: "json" }))}
      {rest.length > 0 && <details onToggle={(event) => setOpen(event.currentTarget.open)}><summary>{rest.length} more</summary>{isOpen && rest.map(row)}</details>}
    </fieldset>
  );
}

interface ComponentProps {
  title: string;
  group: Record<string, Described> | undefined;
  value: unknown;
  pointer: string;
  problems: Problem[];
  onChange: (value: unknown) => void;
}

export function ComponentFields({ title, group = {}, value, pointer, problems, onChange }: ComponentProps) {
  const { use, args } = component(value);
  const described = group[use];
  const list = `names-${title.replaceAll(" ", "-")}`;
  const change = (name: string) => onChange(asComponent(name, argsFor(group[name]?.args, args), value));
  const own = problemsAt(problems, pointer).filter((problem) => !/\/args\/\w+/.test(problem.pointer));
  return (
    <fieldset>
      <legend>{title}</legend>
      <label class="field">
        <span>use</span>
        <input list={list} value={use} aria-invalid={own.length > 0} onChange={(event) => change(event.currentTarget.value.trim())} />
        <datalist id={list}>{Object.values(group).map((one) => <option key={one.name} value={one.name}>{one.summary}</option>)}</datalist>
        {described && <small>{described.summary}</small>}
        <Problems of={own} />
      </label>
      {fieldsOf(described?.args).map((field) => (
        <FieldRow key={field.name} field={field} value={args[field.name]}
          problems={problems.filter((problem) => problem.pointer.startsWith(pointer) && problem.pointer.includes(`/args/${field.name}`))}
          onChange={(next) => onChange(asComponent(use, setAt(args, [field.name], next), value))} />
      ))}
    </fieldset>
  );
}

/** What is wrong with a field, and what would work. */
const Problems = ({ of: problems }: { of: Problem[] }) => (
  <>{problems.map((problem) => <small class="error" key={problem.code + problem.detail}>{problem.detail}{problem.hint && <em> {problem.hint}</em>}</small>)}</>
);

export function FieldRow({ field, value, problems, onChange }: { field: Field; value: unknown; problems: Problem[]; onChange: (value: unknown) => void }) {
  const [typed, setTyped] = useState<string | null>(null);
  const text = value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);
  const change = (event: Event) => onChange(parseField(field.kind, (event.currentTarget as HTMLInputElement).value));
  // While somebody types, the field shows what is typed: "0." and "a, " are read as 0 and a, and would lose their last sign.
  const type = (event: Event) => {
    setTyped((event.currentTarget as HTMLInputElement).value);
    change(event);
  };
  const choices = field.kind === "boolean" ? ["true", "false"] : field.choices.map(String);
  return (
    <label class="field" title={field.description}>
      <span>{field.name}{field.isRequired && " *"}</span>
      {choices.length ? (
        <select value={text} aria-invalid={problems.length > 0} onChange={change}>
          <option value="">{field.defaultText ? `default (${field.defaultText})` : "default"}</option>
          {choices.map((choice) => <option key={choice}>{choice}</option>)}
        </select>
      ) : (
        <input value={typed ?? text} placeholder={field.defaultText} inputMode={field.kind === "number" ? "decimal" : "text"} aria-invalid={problems.length > 0} onInput={type} onBlur={() => setTyped(null)} />
      )}
      <Problems of={problems} />
    </label>
  );
}
