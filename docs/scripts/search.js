// Query words that begin with a hyphen would exclude pages or cause an error. Readers who type an
// option such as --resume want to find it, so strip leading hyphens before the search sees them.
for (const name of ["input", "keyup"])
  window.addEventListener(name, event => {
    const field = event.target;
    if (field instanceof HTMLInputElement && field.name === "query" && /(^|\s)-/.test(field.value))
      field.value = field.value.replace(/(^|\s)-+/g, "$1");
  }, true);
