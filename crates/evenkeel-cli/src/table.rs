//! Text tables with aligned columns.

use std::fmt::Write as _;

use crate::ui::{self, TerminalOutput, TextStyle};

/// Cell of a table row.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableCell {
    text: String,
    style: Option<TextStyle>,
    is_right_aligned: bool,
}

impl TableCell {
    /// Creates a left-aligned cell. Control characters are escaped.
    pub(crate) fn new(text: impl AsRef<str>) -> TableCell {
        TableCell { text: ui::safe(text.as_ref()), style: None, is_right_aligned: false }
    }

    /// Creates a right-aligned cell, for numbers.
    pub(crate) fn right(text: impl AsRef<str>) -> TableCell {
        TableCell { is_right_aligned: true, ..TableCell::new(text) }
    }

    pub(crate) fn style(self, style: TextStyle) -> TableCell {
        TableCell { style: Some(style), ..self }
    }
}

/// Removes all columns but these.
pub(crate) fn keep_columns(rows: &mut [Vec<TableCell>], kept: &[usize]) {
    for row in rows {
        let mut column = 0..;
        row.retain(|_| column.next().is_some_and(|column| kept.contains(&column)));
    }
}

/// Renders rows. Each column is as wide as its widest cell, and columns are two spaces apart. Rows have no
/// trailing spaces.
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
            // Writing to a `String` cannot fail.
            let _ = write!(out, "{before}{text}{after}");
        }
        out.push('\n');
    }
    out
}
