// A click on a column head sorts by it; without script the table stays as written.
document.querySelectorAll("table.sortable").forEach(function (table) {
  var body = table.tBodies[0], heads = table.tHead.rows[0].cells;
  function value(row, column) {
    var cell = row.cells[column], text = (cell.dataset.sort || cell.textContent).trim();
    var number = parseFloat(text.replace(/,/g, ""));
    return column === 0 || isNaN(number) ? text : number;
  }
  Array.prototype.forEach.call(heads, function (head, column) {
    var ascending = false, button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.textContent = "";
    head.appendChild(button);
    button.addEventListener("click", function () {
      ascending = !ascending;
      var rows = Array.prototype.slice.call(body.rows);
      rows.sort(function (a, b) {
        var x = value(a, column), y = value(b, column), order;
        if (typeof x === typeof y) { order = x > y ? 1 : x === y ? 0 : -1; } else { order = typeof x === "number" ? -1 : 1; }
        return ascending ? order : -order;
      });
      rows.forEach(function (row) { body.appendChild(row); });
      Array.prototype.forEach.call(heads, function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    });
  });
});

// Where a table hides columns, its frame says on which side.
document.querySelectorAll(".frame").forEach(function (frame) {
  var scroll = frame.querySelector(".scroll");
  function update() {
    var hidden = scroll.scrollWidth - scroll.clientWidth, sides = [];
    if (scroll.scrollLeft > 1) sides.push("left");
    if (scroll.scrollLeft < hidden - 1) sides.push("right");
    if (sides.length > 0) { frame.dataset.more = sides.join(" "); } else { delete frame.dataset.more; }
  }
  scroll.addEventListener("scroll", update, {passive: true});
  window.addEventListener("resize", update);
  if (frame.closest("details")) frame.closest("details").addEventListener("toggle", update);
  update();
});
