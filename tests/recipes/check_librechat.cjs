// Checks settings with LibreChat's own schema: node check_librechat.cjs FOLDER SETTINGS
// FOLDER holds node_modules/librechat-data-provider, SETTINGS is JSON. Prints the problems, and what the schema keeps of the settings.
const { createRequire } = require("node:module");

const [folder, settings] = process.argv.slice(2);
const { configSchema } = createRequire(`${folder}/`)("librechat-data-provider");
const found = configSchema.strict().safeParse(JSON.parse(settings));
console.log(JSON.stringify({ problems: found.success ? [] : found.error.issues, kept: found.data ?? null }));
