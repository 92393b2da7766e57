/** Specs to begin with: two that run anywhere, and the recipes of the repository's examples as they are there. */

import type { JsonObject } from "./form";

interface Template {
  group: string;
  title: string;
  spec: JsonObject;
  /** The folder in examples/ whose README says what the recipe needs, or null if it needs nothing. */
  folder: string | null;
}

const FIRST_STEPS: Record<string, JsonObject> = {
  "A first job (seconds, CPU)": {
    name: "first", model: "toy/mlp", data: { train: "toy/regression", eval: "toy/regression" },
    training: { max_steps: 2000, logging_steps: 20, eval_strategy: "steps", eval_steps: 200 },
  },
  "A tiny language model": {
    name: "tiny-gpt", model: "toy/gpt", data: "toy/text", training: { max_steps: 500, logging_steps: 10, save_steps: 100 },
  },
};

const RECIPES = import.meta.glob<JsonObject>("../../../examples/*/*.json", { eager: true, import: "default" });

/** The folders that most people look for come first. */
const ORDER = ["fine-tuning", "language-models", "embeddings", "sentences"];

const rank = (folder: string) => (ORDER.indexOf(folder) + 1 || ORDER.length + 1);

export const TEMPLATES: Template[] = [
  ...Object.entries(FIRST_STEPS).map(([title, spec]) => ({ group: "first steps", title, spec, folder: null })),
  ...Object.entries(RECIPES)
    .map(([path, spec]) => {
      const folder = path.split("/").at(-2)!;
      return { group: folder.replaceAll("-", " "), title: String(spec.name), spec, folder };
    })
    .sort((a, b) => rank(a.folder) - rank(b.folder) || a.group.localeCompare(b.group) || a.title.localeCompare(b.title)),
];

export const FIRST: JsonObject = TEMPLATES[0]!.spec;

/** Returns true for a spec that names files or code which the service does not have by itself. */
export const isRecipe = (spec: JsonObject) => /"(models|data):\/\/|"bundle"/.test(JSON.stringify(spec));
