// What the page does beside htmx: copies snippets, goes to the search box when "/" is pressed, sends a text when Ctrl and
// Enter are, and shows that an answer is awaited. Nothing is evaluated.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy).textContent;
  const said = button.firstChild;
  const before = said.textContent;
  navigator.clipboard.writeText(text).then(
    () => { said.textContent = "Copied"; setTimeout(() => { said.textContent = before; }, 1500); },
    () => { getSelection().selectAllChildren(document.getElementById(button.dataset.copy)); },
  );
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const box = document.getElementById("q");
    if (box) { event.preventDefault(); box.focus(); box.select(); }
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("[data-submit]")) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
});
const main = document.getElementById("main");
document.addEventListener("submit", (event) => {
  if (!event.defaultPrevented) main.setAttribute("aria-busy", "true");
});
addEventListener("pageshow", () => main.removeAttribute("aria-busy"));
const tree = document.querySelector(".treebox");
if (tree && matchMedia("(max-width: 800px)").matches) tree.open = false;
