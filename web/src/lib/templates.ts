/** Specs to begin with. Each of the first two runs on any node; the others need the paths that they name. */

export const TEMPLATES: Record<string, object> = {
  "A first job (seconds, CPU)": {
    name: "first", model: "toy/mlp", data: { train: "toy/regression", eval: "toy/regression" },
    training: { max_steps: 2000, logging_steps: 20, eval_strategy: "steps", eval_steps: 200 },
  },
  "A tiny language model": {
    name: "tiny-gpt", model: "toy/gpt", data: "toy/text", training: { max_steps: 500, logging_steps: 10, save_steps: 100 },
  },
  "Classify text with BERT": {
    name: "bert", model: { use: "hf/sequence-classification", args: { path: "models://bert-tiny", num_labels: 2 } },
    data: {
      train: { use: "files/csv", args: { paths: ["data://train.csv"] } },
      eval: { use: "files/csv", args: { paths: ["data://dev.csv"] } },
      map: [{ use: "tokenize", args: { column: "text", max_length: 128 } }],
    },
    metrics: ["accuracy", "f1"],
    training: { num_train_epochs: 3, learning_rate: 2e-5, logging_steps: 10, eval_strategy: "epoch" },
  },
  "LoRA on chat data": {
    name: "lora",
    model: { use: "hf/causal-lm", args: { path: "models://tiny-lm", peft: { r: 8, target_modules: "all-linear" } } },
    data: { train: { use: "files/jsonl", args: { paths: ["data://chat.jsonl"] } }, map: ["chat"] },
    training: { num_train_epochs: 1, learning_rate: 2e-4, per_device_train_batch_size: 4, logging_steps: 5 },
  },
};
