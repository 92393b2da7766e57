import { defineConfig } from "vite";

// The service serves what is built here from service/dashboard, below /dashboard/.
export default defineConfig({
  base: "/dashboard/",
  publicDir: "public",
  build: {
    outDir: "../service/dashboard",
    emptyOutDir: true,
    target: "es2022",
    // light-dark() holds every colour once; an older target would be given a polyfill of twice the size.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "[name]-[hash].js",
        chunkFileNames: "[name]-[hash].js",
        assetFileNames: "[name]-[hash][extname]",
      },
    },
  },
  server: {
    proxy: Object.fromEntries(
      ["/jobs", "/metrics", "/stream", "/files", "/bundles", "/nodes", "/queue", "/keys", "/webhooks", "/components", "/schema", "/readyz", "/livez", "/tickets"].map(
        (path) => [path, { target: process.env.FOOTPLATE_URL ?? "http://127.0.0.1:8080", ws: true }],
      ),
    ),
  },
});
