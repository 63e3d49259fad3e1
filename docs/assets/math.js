// Set the equations of a page, which pymdownx.arithmatex leaves as \(...\) and \[...\].
for (const element of document.querySelectorAll(".arithmatex")) {
  const text = element.textContent.trim()
  katex.render(text.slice(2, -2), element, {displayMode: text.startsWith("\\["), strict: "error"})
}
