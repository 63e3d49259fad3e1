// The filter of the catalogue: hides the cards and the rows of the table that do not match. The fields can be set in
// the address, as in catalogue.html?structure=grid&q=learned. Words of a search are all looked for, with properties as
// `point:relative`.
(() => {
  const form = document.querySelector("#filter");
  if (!form) return;
  const cards = [...document.querySelectorAll(".cards a")];
  const rows = new Map([...document.querySelectorAll("article table tbody tr")].map((row) => [
    row.cells[0].textContent, row,
  ]));
  const fields = [...form.querySelectorAll("select")];

  const matches = (card) => {
    const row = rows.get(card.querySelector("b").textContent);
    const text = `${card.textContent} ${card.dataset.words} ${row.textContent}`.toLowerCase();
    const parts = (name) => card.dataset[name].split(/[,;] /);
    return fields.every((field) => !field.value || parts(field.name).includes(field.value))
      && form.q.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  };

  const apply = () => {
    const shown = cards.filter(matches);
    for (const card of cards) {
      card.hidden = !shown.includes(card);
      rows.get(card.querySelector("b").textContent).hidden = card.hidden;
    }
    for (const group of document.querySelectorAll(".cards")) {
      const empty = !group.querySelector("a:not([hidden])");
      group.hidden = empty;
      group.previousElementSibling.hidden = empty;
    }
    form.querySelector("output").value = `${shown.length} of ${cards.length}`;
  };

  for (const [name, value] of new URLSearchParams(location.search)) {
    if (form.elements[name]) form.elements[name].value = value;
  }
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
})();
