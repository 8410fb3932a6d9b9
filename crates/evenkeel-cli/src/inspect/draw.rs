//! Tree of text lines, drawn with branches.
//!
//! Every text is escaped when added, so a name from outside cannot move the cursor. Long lines wrap beside
//! the branches if the terminal's width is known.

use std::fmt::Write as _;

use crate::ui::{self, TerminalOutput, TextStyle};

/// Line with its child lines.
#[derive(Debug, Default)]
pub(super) struct TreeNode {
    spans: Vec<TextSpan>,
    pub(super) below: Vec<TreeNode>,
}

#[derive(Debug)]
struct TextSpan {
    style: Option<TextStyle>,
    text: String,
}

impl TreeNode {
    /// Creates a line with unstyled text.
    pub(super) fn new(text: impl AsRef<str>) -> TreeNode {
        TreeNode::default().with(None, text)
    }

    /// Creates a line with styled text.
    pub(super) fn styled(style: TextStyle, text: impl AsRef<str>) -> TreeNode {
        TreeNode::default().with(Some(style), text)
    }

    /// Appends text after a space. An empty text adds nothing.
    #[must_use]
    pub(super) fn with(mut self, style: impl Into<Option<TextStyle>>, text: impl AsRef<str>) -> TreeNode {
        if !text.as_ref().is_empty() {
            self.spans.push(TextSpan { style: style.into(), text: ui::safe(text.as_ref()) });
        }
        self
    }

    /// Returns the text of the line without styles. It is escaped.
    pub(super) fn plain(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Adds a child line.
    pub(super) fn push(&mut self, below: TreeNode) {
        self.below.push(below);
    }
}

/// Draws the trees. Roots start at the margin, descendants behind branches.
pub(super) fn text(tops: &[TreeNode], terminal: &TerminalOutput, width: Option<usize>) -> String {
    let mut drawing = TreeRenderer { terminal, width, out: String::new() };
    for top in tops {
        drawing.branch(top, "", "");
    }
    drawing.out
}

struct TreeRenderer<'a> {
    terminal: &'a TerminalOutput,
    width: Option<usize>,
    out: String,
}

impl TreeRenderer<'_> {
    /// Draws a node. `first` is the prefix of its first line, `others` that of all following lines.
    fn branch(&mut self, branch: &TreeNode, first: &str, others: &str) {
        let hanging = if branch.below.is_empty() { "  " } else { "│ " };
        self.line(&branch.spans, first, &format!("{others}{hanging}"));
        for (i, below) in branch.below.iter().enumerate() {
            let is_last = i + 1 == branch.below.len();
            let (corner, beside) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.branch(below, &format!("{others}{corner}"), &format!("{others}{beside}"));
        }
    }

    fn line(&mut self, spans: &[TextSpan], first: &str, others: &str) {
        let mut column = first.chars().count();
        let start = others.chars().count();
        self.faint(first);
        let mut is_fresh = true;
        for span in spans {
            // Part of the span on the current line.
            let mut here = String::new();
            for word in span.text.split(' ') {
                let wide = word.chars().count();
                let fits = self.width.is_none_or(|width| column + 1 + wide <= width);
                if !is_fresh && !fits && column > start {
                    self.write(span.style, here.trim_end());
                    here.clear();
                    self.out.truncate(self.out.trim_end_matches(' ').len());
                    self.out.push('\n');
                    self.faint(others);
                    column = start;
                } else if !is_fresh {
                    let space = if here.is_empty() { &mut self.out } else { &mut here };
                    space.push(' ');
                    column += 1;
                }
                is_fresh = false;
                here.push_str(word);
                column += wide;
            }
            self.write(span.style, &here);
        }
        // Remove the padding after the last text.
        self.out.truncate(self.out.trim_end_matches(' ').len());
        self.out.push('\n');
    }

    fn faint(&mut self, text: &str) {
        self.write(Some(TextStyle::Faint), text);
    }

    fn write(&mut self, style: Option<TextStyle>, text: &str) {
        match style {
            Some(style) if !text.is_empty() => {
                let painted = self.terminal.paint(style, text);
                // Writing to a `String` cannot fail.
                let _ = write!(self.out, "{painted}");
            }
            _ => self.out.push_str(text),
        }
    }
}

/// Formats a number with thousands separators.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::ColorMode;

    fn plain(tops: &[TreeNode], width: Option<usize>) -> String {
        text(tops, &TerminalOutput::new(ColorMode::Never), width)
    }

    fn tree() -> Vec<TreeNode> {
        let mut top = TreeNode::new("top");
        let mut one = TreeNode::new("one two three four");
        one.push(TreeNode::new("leaf"));
        top.push(one);
        top.push(TreeNode::new("last").with(TextStyle::Bad, "of all"));
        vec![top]
    }

    #[test]
    fn branches_are_drawn() {
        let expected = "top\n├─ one two three four\n│  └─ leaf\n└─ last of all\n";
        assert_eq!(plain(&tree(), None), expected);
    }

    #[test]
    fn long_lines_go_on_below() {
        let expected = "top\n├─ one two\n│  │ three\n│  │ four\n│  └─ leaf\n└─ last of\n     all\n";
        assert_eq!(plain(&tree(), Some(10)), expected);
        // A width of zero still terminates.
        assert_eq!(plain(&tree(), Some(0)).lines().count(), 9);
    }

    /// Control characters in a name are escaped.
    #[test]
    fn control_characters_are_escaped() {
        let lines = plain(&[TreeNode::new("a\x1b[2Jb\nc\u{202e}d")], None);
        assert_eq!(lines, "a\\u{1b}[2Jb\\nc\\u{202e}d\n");
    }

    #[test]
    fn thousands_stand_apart() {
        let shown = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
