// A word of a query that begins with hyphens would exclude pages or be an error. Readers who type
// an option, such as --resume, look for it: drop the hyphens before the search sees them.
for (const name of ["input", "keyup"])
  window.addEventListener(name, event => {
    const field = event.target;
    if (field instanceof HTMLInputElement && field.name === "query" && /(^|\s)-/.test(field.value))
      field.value = field.value.replace(/(^|\s)-+/g, "$1");
  }, true);
