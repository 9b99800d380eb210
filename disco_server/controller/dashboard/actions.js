// What changes something, asked twice; and what is saved as a file.

import { find } from "./text.js";

/** Asks whether something shall be done to what has a name, which must be typed. */
export function makeSure({ title, text, yes, name, act }) {
  const dialog = find("sure"), typed = find("sure-name"), button = find("sure-yes");
  find("sure-title").textContent = title;
  find("sure-text").textContent = text;
  find("sure-refused").textContent = "";
  button.textContent = yes;
  button.disabled = true;
  typed.value = "";
  typed.oninput = () => { button.disabled = typed.value !== name; };
  typed.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // it would press the first button of the form
    if (!button.disabled) button.click();
  };
  button.onclick = async () => {
    button.disabled = true;
    const problem = await act();
    if (problem) find("sure-refused").textContent = problem;
    else dialog.close();
  };
  dialog.showModal();
  typed.focus();
}

/** Posts to the controller; returns why it refused, or nothing. */
export async function post(path, said, headers) {
  try {
    const answer = await fetch(path, {
      method: "POST", headers: { ...headers, "Content-Type": "application/json" },
      body: JSON.stringify(said), cache: "no-store", credentials: "same-origin",
    });
    return answer.ok ? "" : await answer.text();
  } catch (error) {
    return `not connected: ${error.message}`;
  }
}

/** Saves an answer as a file of its name; returns why that is not possible, or nothing. */
export async function save(path, headers, name) {
  try {
    const answer = await fetch(path, { headers, cache: "no-store" });
    if (!answer.ok) return await answer.text();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    return "";
  } catch (error) {
    return `not connected: ${error.message}`;
  }
}
