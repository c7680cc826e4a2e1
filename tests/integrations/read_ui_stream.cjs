// Sends messages to an endpoint as useChat does, and reads its answer with the AI SDK: node read_ui_stream.cjs FOLDER URL MESSAGES
// FOLDER holds node_modules/ai. Prints the message that the page would show, each step of its text, and the errors.
const { createRequire } = require("node:module");

const [folder, api, messages] = process.argv.slice(2);
const ai = createRequire(`${folder}/`)("ai");

async function main() {
  const transport = new ai.DefaultChatTransport({ api });
  const stream = await transport.sendMessages({ trigger: "submit-message", chatId: "chat", messages: JSON.parse(messages) });
  const errors = [];
  const texts = [];
  let shown = null;
  for await (const message of ai.readUIMessageStream({ stream, onError: (error) => errors.push(error.message) })) {
    shown = message;
    texts.push(message.parts.filter((part) => part.type === "text").map((part) => part.text).join(""));
  }
  console.log(JSON.stringify({ message: shown, texts, errors }));
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
