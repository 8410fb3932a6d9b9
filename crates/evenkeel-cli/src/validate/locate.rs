//! Converts a field path to a line and a column.
//!
//! Parsers report errors by field path. JSON is walked value by value. In a mesh, only the names of services
//! and clusters are searched, by line.

use serde::de::IgnoredAny;

/// One step of a field path.
#[derive(Debug, PartialEq)]
enum PathStep {
    Key(String),
    Index(usize),
}

/// Returns the 1-based line and column of the value at a path such as `xds_servers[0].channel_creds` in a
/// JSON text. If the path ends early, it is the position of the deepest existing value. Returns `None` for
/// invalid JSON.
pub(super) fn locate(text: &str, path: &str) -> Option<(u64, u64)> {
    let mut at = value_from(text, 0);
    for step in steps(path) {
        match inside(text, at, &step) {
            Some(next) => at = next,
            None => break,
        }
    }
    (at < text.len()).then(|| place(text, at))
}

/// Returns the line and column of a byte offset.
fn place(text: &str, at: usize) -> (u64, u64) {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() as u64 + 1, before[line_start..].chars().count() as u64 + 1)
}

/// Returns the offset of the value that a step selects.
fn inside(text: &str, at: usize, step: &PathStep) -> Option<usize> {
    let is_object = text[at..].starts_with('{');
    if !is_object && !text[at..].starts_with('[') {
        return None;
    }
    let mut next = value_from(text, at + 1);
    for i in 0.. {
        if text[next..].starts_with(['}', ']']) {
            return None;
        }
        let is_wanted = if is_object {
            let end = after_value(text, next)?;
            let key: String = serde_json::from_str(&text[next..end]).ok()?;
            next = value_from(text, value_from(text, end) + 1);
            matches!(step, PathStep::Key(wanted) if *wanted == key)
        } else {
            matches!(step, PathStep::Index(wanted) if *wanted == i)
        };
        if is_wanted {
            return Some(next);
        }
        next = value_from(text, after_value(text, next)?);
        if text[next..].starts_with(',') {
            next = value_from(text, next + 1);
        }
    }
    None
}

/// Returns the offset of the first byte at or after `at` that is not white space.
fn value_from(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    text.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len()
}

/// Returns the end offset of the value that starts at `at`.
fn after_value(text: &str, at: usize) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_str(text.get(at..)?).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(at + values.byte_offset())
}

/// Parses a path as findings format it: `a.b[2]["c d"]`. A malformed step ends the path.
fn steps(path: &str) -> Vec<PathStep> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let mut values = serde_json::Deserializer::from_str(inner).into_iter::<serde_json::Value>();
            let step = match values.next() {
                Some(Ok(serde_json::Value::String(key))) => PathStep::Key(key),
                Some(Ok(serde_json::Value::Number(index))) => match index.as_u64() {
                    Some(index) => PathStep::Index(index as usize),
                    None => break,
                },
                _ => break,
            };
            steps.push(step);
            rest = inner[values.byte_offset()..].trim_start_matches(']');
        } else {
            rest = rest.trim_start_matches('.');
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(PathStep::Key(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    steps
}

/// Returns the line and column of an entry, such as a cluster, in a section of a mesh. Only block style is
/// supported; flow style returns `None`.
pub(super) fn locate_entry(text: &str, section: &str, name: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().zip(1..).skip_while(|(line, _)| key_of(line) != Some((0, section))).skip(1);
    let entries =
        lines.by_ref().take_while(|(line, _)| !line.starts_with(|c: char| !c.is_whitespace() && c != '#'));
    let mut indent = None;
    for (line, number) in entries {
        let Some((column, key)) = key_of(line) else { continue };
        // Entries have the indentation of the first one. Deeper lines belong to an entry.
        if *indent.get_or_insert(column) == column && key == name {
            return Some((number, column as u64 + 1));
        }
    }
    None
}

/// Returns the line and column of the value of a key in an entry of a section, or of the entry if it has no such key. A key
/// without a value on its line has the position of the key.
pub(super) fn locate_key(text: &str, section: &str, name: &str, key: &str) -> Option<(u64, u64)> {
    let entry = locate_entry(text, section, name)?;
    let indent = entry.1 as usize - 1;
    let mut lines = text.lines().zip(1..).skip(entry.0 as usize - 1);
    let (own, number) = lines.next()?;
    // Flow style: the keys are on the line of the entry.
    let in_flow = own.match_indices(key).find(|(at, _)| {
        own[..*at].trim_end().ends_with(['{', ',']) && own[at + key.len()..].starts_with(':')
    });
    if let Some((at, _)) = in_flow {
        return Some((number, value_column(own, at + key.len() + 1)));
    }
    let mut child = None;
    for (line, number) in lines {
        let Some((column, found)) = key_of(line) else { continue };
        if column <= indent {
            break;
        }
        if *child.get_or_insert(column) == column && found == key {
            let after_key = line.find(':').map_or(column, |colon| colon + 1);
            let is_empty = line[after_key..].split(" #").next().is_none_or(|value| value.trim().is_empty());
            return Some((number, if is_empty { column as u64 + 1 } else { value_column(line, after_key) }));
        }
    }
    Some(entry)
}

/// Returns the 1-based column of the first character at or after a byte offset that is not a space.
fn value_column(line: &str, from: usize) -> u64 {
    let spaces = line[from..].len() - line[from..].trim_start().len();
    line[..from + spaces].chars().count() as u64 + 1
}

/// Returns the indentation of a line and its key.
fn key_of(line: &str) -> Option<(usize, &str)> {
    let trimmed = line.trim_start_matches(' ');
    let (key, _) = trimmed.split_once(':').filter(|_| !trimmed.starts_with('#'))?;
    Some((line.len() - trimmed.len(), key.trim_matches(['"', '\''])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{
  "xds_servers": [
    {"server_uri": "a", "channel_creds": []},
    {"server_uri": "b",
     "channel_creds": [{"type": "none"}]}
  ],
  "authorities": {"a \"b\".c": {"x": 1}}
}"#;

    #[test]
    fn a_path_leads_to_its_value() {
        let check = |path: &str, expected| assert_eq!(locate(JSON, path), Some(expected), "{path}");
        check("", (1, 1));
        check("xds_servers", (2, 18));
        check("xds_servers[1].channel_creds", (5, 23));
        check("xds_servers[1].channel_creds[0].type", (5, 33));
        check(r#"authorities["a \"b\".c"].x"#, (7, 38));
        // A missing value has the position of its deepest existing parent.
        check("xds_servers[1].server_features[2]", (4, 5));
        check("xds_servers[7].server_uri", (2, 18));
        check("node.id", (1, 1));
    }

    #[test]
    fn what_is_no_json_has_no_places() {
        for text in ["", "  ", "{", "{\"a\"", "{\"a\": [", "[1, 2", "nothing", "{\"a\": 1}}"] {
            for path in ["a", "a[0]", "[1]", "[x", "a..b", "[\"a\"][\"b\"]"] {
                let _ = locate(text, path);
            }
        }
        assert_eq!(locate("  ", "a"), None);
    }

    #[test]
    fn an_entry_of_a_mesh_is_found_by_its_line() {
        let mesh = "# clusters:\nservices:\n  orders: {}\n\nclusters:\n  # orders: no\n  pay:\n    orders: 3\n  \"orders\":\n    policy: x\nother:\n  a: 1\n";
        assert_eq!(locate_entry(mesh, "services", "orders"), Some((3, 3)));
        assert_eq!(locate_entry(mesh, "clusters", "orders"), Some((9, 3)));
        assert_eq!(locate_entry(mesh, "clusters", "a"), None);
        assert_eq!(locate_entry("clusters: {orders: {}}", "clusters", "orders"), None);
    }

    #[test]
    fn a_key_of_an_entry_is_found() {
        let mesh = "clusters:\n  a:\n    endpoints:\n      policy: no\n    policy:  x # y\n  b: {endpoints: [], policy: {ö: {}}}\n  c:\n    policy:   # below\n      z: {}\n  d:\n    lrs: true\n\n  e:\n    policy: x\n";
        let check =
            |name: &str, place| assert_eq!(locate_key(mesh, "clusters", name, "policy"), place, "{name}");
        check("a", Some((5, 14)));
        check("b", Some((6, 30)));
        check("c", Some((8, 5)));
        // Without the key, the entry itself.
        check("d", Some((10, 3)));
        check("f", None);
    }
}
