//! Columns of text that stand below each other.

use std::fmt::Write as _;

use crate::ui::{self, TerminalOutput, TextStyle};

/// One cell of a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableCell {
    text: String,
    style: Option<TextStyle>,
    is_right_aligned: bool,
}

impl TableCell {
    /// A cell with this text, whose control characters are escaped.
    pub(crate) fn new(text: impl AsRef<str>) -> TableCell {
        TableCell { text: ui::safe(text.as_ref()), style: None, is_right_aligned: false }
    }

    /// A cell whose text ends where its column ends: numbers.
    pub(crate) fn right(text: impl AsRef<str>) -> TableCell {
        TableCell { is_right_aligned: true, ..TableCell::new(text) }
    }

    pub(crate) fn style(self, style: TextStyle) -> TableCell {
        TableCell { style: Some(style), ..self }
    }
}

/// Rows below each other, each column as wide as its widest cell and two spaces apart. Nothing stands after the last
/// text of a row.
pub(crate) fn table(rows: &[Vec<TableCell>], terminal: &TerminalOutput) -> String {
    let mut widths = Vec::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            if i == widths.len() {
                widths.push(0);
            }
            widths[i] = widths[i].max(cell.text.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let used = row.iter().rposition(|cell| !cell.text.is_empty()).map_or(0, |last| last + 1);
        for (i, (cell, width)) in row.iter().zip(&widths).take(used).enumerate() {
            if i > 0 {
                out.push_str("  ");
            }
            let space = " ".repeat(width - cell.text.chars().count());
            let (before, after) = if cell.is_right_aligned { (&*space, "") } else { ("", &*space) };
            let after = if i + 1 == used { "" } else { after };
            let text = match cell.style {
                Some(style) => terminal.paint(style, &cell.text).to_string(),
                None => cell.text.clone(),
            };
            // A `String` takes everything.
            let _ = write!(out, "{before}{text}{after}");
        }
        out.push('\n');
    }
    out
}
