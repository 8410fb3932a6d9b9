//! Table of figures, for a terminal and for a document.

use std::fmt::Write as _;

/// Rows of figures under a title. The first column has the row names and is left-aligned, the others are
/// right-aligned.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    title: String,
    /// Explanation of the figures and their measurement.
    note: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Table { title: title.into(), note: String::new(), columns, rows: Vec::new() }
    }

    /// Sets the explanation of the figures.
    pub(crate) fn note(self, note: impl Into<String>) -> Table {
        Table { note: note.into(), ..self }
    }

    /// Adds a row. Missing cells are empty.
    pub(crate) fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Renders the table for a terminal.
    pub(crate) fn text(&self) -> String {
        let width = |i: usize| {
            let cells = std::iter::once(&self.columns).chain(&self.rows).map(|row| row[i].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = format!("{}\n", self.title);
        if !self.note.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "{}", self.note);
        }
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = if i == 0 { write!(out, "{cell:width$}") } else { write!(out, "  {cell:>width$}") };
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
        out
    }

    /// Renders the table as Markdown: a third-level heading, the note and the table.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!("### {}\n\n", self.title);
        if !self.note.is_empty() {
            let _ = writeln!(out, "{}\n", self.note);
        }
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        out.push_str(&line(&self.columns));
        let rules: Vec<&str> = (0..self.columns.len()).map(|i| if i == 0 { "---" } else { "---:" }).collect();
        let _ = writeln!(out, "|{}|", rules.join("|"));
        for row in &self.rows {
            out.push_str(&line(row));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_shown_and_written() {
        let mut table = Table::new("Calls", &["client", "ratio"]).note("of one run");
        table.row(vec!["hyper".to_owned(), "1.00".to_owned()]);
        table.row(vec!["evenkeel".to_owned()]);
        assert_eq!(table.text(), "Calls\nof one run\nclient    ratio\nhyper      1.00\nevenkeel\n");
        let written =
            "### Calls\n\nof one run\n\n| client | ratio |\n|---|---:|\n| hyper | 1.00 |\n| evenkeel |  |\n";
        assert_eq!(table.markdown(), written);
    }
}
