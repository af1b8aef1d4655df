// Runs before the page is drawn, so that it does not flash in the other colours.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's colours are taken.
}
