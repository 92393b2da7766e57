/** The form's side of a spec: values at JSON pointers, and the fields that a component's arguments need. */

import type { Flat } from "./flatten";

export type JsonObject = { [key: string]: unknown };

export function getAt(value: unknown, path: string[]): unknown {
  return path.reduce<unknown>((part, key) => (part !== null && typeof part === "object" ? (part as JsonObject)[key] : undefined), value);
}

/** Returns a copy with one value changed. `undefined` takes the key away, and objects that it leaves empty. */
export function setAt(value: JsonObject, path: string[], next: unknown): JsonObject {
  const [key, ...rest] = path as [string, ...string[]];
  const copy: JsonObject = { ...value };
  if (rest.length === 0) {
    if (next === undefined) delete copy[key];
    else copy[key] = next;
    return copy;
  }
  const inner = copy[key];
  const changed = setAt(inner !== null && typeof inner === "object" && !Array.isArray(inner) ? (inner as JsonObject) : {}, rest, next);
  if (Object.keys(changed).length === 0) delete copy[key];
  else copy[key] = changed;
  return copy;
}

export interface Field {
  name: string;
  kind: "text" | "number" | "boolean" | "choice" | "json";
  choices: unknown[];
  description: string;
  defaultText: string;
  isRequired: boolean;
}

export interface Schema {
  $ref?: string;
  type?: string | string[];
  anyOf?: Schema[];
  enum?: unknown[];
  default?: unknown;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
}

/** Returns one field for each property of a JSON Schema's object. What no simple field can hold is edited as JSON. */
export function fieldsOf(schema: Schema | undefined): Field[] {
  return Object.entries(schema?.properties ?? {}).map(([name, property]) => ({
    name,
    ...kindOf(property),
    description: property.description ?? "",
    defaultText: property.default === undefined || property.default === null ? "" : typeof property.default === "string" ? property.default : JSON.stringify(property.default),
    isRequired: schema?.required?.includes(name) ?? false,
  }));
}

function kindOf(schema: Schema): { kind: Field["kind"]; choices: unknown[] } {
  const plain = (schema.anyOf ?? [schema]).filter((one) => one.type !== "null");
  const only = plain.length === 1 ? plain[0]! : null;
  if (only?.enum) return { kind: "choice", choices: only.enum };
  const type = Array.isArray(only?.type) ? only!.type.find((one) => one !== "null") : only?.type;
  if (type === "boolean") return { kind: "boolean", choices: [] };
  if (type === "integer" || type === "number" || plain.every((one) => one.type === "integer" || one.type === "number")) return { kind: "number", choices: [] };
  if (type === "string") return { kind: "text", choices: [] };
  return { kind: "json", choices: [] };
}

/** Reads what was typed. Empty means "not set". Text that is no JSON where JSON is needed stays text, and the server says so. */
export function parseField(kind: Field["kind"], text: string): unknown {
  if (text.trim() === "") return undefined;
  if (kind === "number") {
    const number = Number(text);
    return Number.isFinite(number) ? number : text;
  }
  if (kind === "boolean") return text === "true";
  if (kind === "json" || kind === "choice") {
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }
  return text;
}

/** A component in its long form. */
export function component(value: unknown): { use: string; args: JsonObject } {
  if (typeof value === "string") return { use: value, args: {} };
  if (value !== null && typeof value === "object" && "use" in value) {
    const { use, args } = value as { use: unknown; args?: JsonObject };
    return { use: String(use), args: args ?? {} };
  }
  return { use: "", args: {} };
}

/** Returns the short form where there are no arguments. A component in the long form stays long, because a fork would list another form as a change. */
export function asComponent(use: string, args: JsonObject, before?: unknown): unknown {
  if (!use) return undefined;
  return Object.keys(args).length || typeof before === "object" ? { use, args } : use;
}

/** Returns the arguments that stay when the name of a component changes: those that the new one takes, or all while the name is not complete. */
export function argsFor(schema: Schema | undefined, args: JsonObject): JsonObject {
  return schema ? Object.fromEntries(Object.entries(args).filter(([name]) => name in (schema.properties ?? {}))) : args;
}

/** The schema of a spec, with the definitions that it refers to. */
export type SpecSchema = Schema & { $defs?: Record<string, Schema> };
/** The components by group and name, as `GET /components` lists them. */
export type Catalogue = Record<string, Record<string, { args?: Schema }>>;

/** Returns flat specs with the service's defaults for what only others of them set. */
export function withDefaults(specs: Flat[], schema: SpecSchema, catalogue: Catalogue): Flat[] {
  const paths = [...new Set(specs.flatMap((spec) => [...spec.keys()]))];
  return specs.map((spec) => new Map(paths.map((path): [string, unknown] => [path, spec.has(path) ? spec.get(path) : defaultAt(path, spec, schema, catalogue)]).filter(([, value]) => value !== undefined)));
}

function defaultAt(path: string, spec: Flat, schema: SpecSchema, catalogue: Catalogue): unknown {
  const [, part, name] = /^(.+)\.args\.([^.]+)$/.exec(path) ?? [];
  if (part) {
    const use = String(spec.get(`${part}.use`) ?? "");
    return Object.values(catalogue).find((group) => use in group)?.[use]?.args?.properties?.[name!]?.default;
  }
  const resolved = (inner: Schema | undefined) => (inner?.$ref ? schema.$defs?.[inner.$ref.split("/").at(-1)!] : inner);
  return path.split(".").reduce<Schema | undefined>((inner, key) => resolved(inner?.properties?.[key]), schema)?.default;
}

const LONGEST_STEM = 110;

/** Returns the name of a fork or a copy, such as "run fork", then "run fork 2", so that their curves can be told apart. */
export function nextName(name: string, word: "fork" | "copy", taken: ReadonlySet<string | null>): string {
  const stem = name.replace(new RegExp(` ${word}( \\d+)?$`), "").slice(0, LONGEST_STEM);
  for (let number = 1; ; number += 1) {
    const next = `${stem} ${word}${number > 1 ? ` ${number}` : ""}`;
    if (!taken.has(next)) return next;
  }
}

/** Problems whose pointer is this field or lies below. */
export function problemsAt<P extends { pointer: string }>(problems: P[], pointer: string): P[] {
  return problems.filter((problem) => problem.pointer === pointer || problem.pointer.startsWith(`${pointer}/`));
}

/** The merge patch (RFC 7396) that makes one JSON object of another. */
export function mergePatch(from: JsonObject, to: JsonObject): JsonObject {
  const patch: JsonObject = {};
  const isObject = (value: unknown): value is JsonObject => value !== null && typeof value === "object" && !Array.isArray(value);
  for (const key of new Set([...Object.keys(from), ...Object.keys(to)])) {
    if (!(key in to)) patch[key] = null;
    else if (isObject(from[key]) && isObject(to[key])) {
      const inner = mergePatch(from[key], to[key]);
      if (Object.keys(inner).length) patch[key] = inner;
    } else if (JSON.stringify(from[key]) !== JSON.stringify(to[key])) patch[key] = to[key];
  }
  return patch;
}
