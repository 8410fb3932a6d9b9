//! Source files, their comments, and the requirement ids of `docs/conformance`, for the tests `language` and `conformance`.

use std::fs;
use std::path::{Path, PathBuf};

/// Prefixes of well-known names that look like requirement ids.
const OTHER_NAMES: &[&str] = &["AES", "FNV", "SHA", "UTF"];

/// Source file, with its path relative to the workspace.
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl SourceFile {
    /// Returns true if the whole file is test code.
    pub(crate) fn is_test(&self) -> bool {
        self.path.starts_with("testkit")
            || self.path.starts_with("tools")
            || self.path.iter().any(|part| part == "tests" || part == "tests.rs" || part == "benches")
    }

    /// The lines with their numbers, and true for each line of a `#[cfg(test)]` module.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str, bool)> {
        let mut attribute = false;
        let mut end = None;
        self.text.lines().enumerate().map(move |(index, line)| {
            let code = line.trim_start();
            if attribute && code.contains("mod ") && code.ends_with('{') {
                end = Some(format!("{}}}", &line[..line.len() - code.len()]));
            }
            attribute = code == "#[cfg(test)]";
            let is_test = end.is_some() || attribute;
            if end.as_deref() == Some(line) {
                end = None;
            }
            (index + 1, line, is_test)
        })
    }
}

/// Root folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below a folder of the workspace whose names end in one of the extensions, sorted by path.
pub(crate) fn source_files(dir: &str, extensions: &[&str]) -> Vec<SourceFile> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::from(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root().join(&dir)).into_iter().flatten() {
            let entry = entry.expect("a source folder can be listed");
            let name = entry.file_name();
            let path = dir.join(&name);
            let is_ignored =
                name == "target" || name == "node_modules" || name.to_string_lossy().starts_with('.');
            if entry.path().is_dir() {
                dirs.extend((!is_ignored).then_some(path));
            } else if path.extension().is_some_and(|found| extensions.iter().any(|known| found == *known)) {
                let text = fs::read_to_string(entry.path()).expect("a listed source can be read");
                files.push(SourceFile { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Requirement ids that the table rows of `docs/conformance` define, with their files.
pub(crate) fn defined_ids() -> Vec<(String, PathBuf)> {
    let pages = source_files("docs/conformance", &["md"]);
    let rows = pages.iter().flat_map(|page| page.text.lines().map(move |line| (page, line)));
    rows.filter_map(|(page, line)| {
        let (cell, _) = line.strip_prefix("| ")?.split_once(" |")?;
        let [id] = requirement_ids(cell).try_into().ok()?;
        (id == cell).then(|| (id, page.path.clone()))
    })
    .collect()
}

/// Requirement ids that a text names: `WRR-6`, `VAL-C3`, `fault 40`, ranges such as `EDF-1..4` expanded.
pub(crate) fn requirement_ids(text: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for token in text.split(|c: char| !(c.is_ascii_alphanumeric() || "-.=_".contains(c))) {
        ids.extend(expand(token.trim_end_matches('.')).into_iter().flatten());
    }
    let mut in_list = false;
    for word in text.split_whitespace() {
        if matches!(word.trim_start_matches(['(', '`']), "fault" | "Fault" | "faults" | "Faults") {
            in_list = true;
        } else if in_list && word != "and" {
            let range = number_range(word.trim_matches([',', ';', ':', '.', ')', '`']));
            ids.extend(
                range.into_iter().flat_map(|(from, to)| from..=to).map(|number| format!("fault {number}")),
            );
            in_list = range.is_some() && !word.ends_with([';', ':', '.', ')', '`']);
        }
    }
    ids
}

/// The ids of one token: `EDF-1`, `EDF-1..4` or `EDF-1..EDF-4`.
fn expand(token: &str) -> Option<impl Iterator<Item = String> + use<>> {
    let (group, numbers) = token.split_once('-')?;
    let is_group = (2..=5).contains(&group.len()) && group.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_group || OTHER_NAMES.contains(&group) {
        return None;
    }
    // `VAL` has a letter for the resource type in front of the number.
    let letters =
        if group == "VAL" { numbers.get(..1)?.trim_matches(|c: char| !c.is_ascii_uppercase()) } else { "" };
    let prefix = format!("{group}-{letters}");
    let (from, to) = number_range(&token[prefix.len()..].replace(&prefix, ""))?;
    Some((from..=to).map(move |number| format!("{prefix}{number}")))
}

/// A number, or a range `1..4` or `1..=4`, both inclusive.
fn number_range(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    Some((from.parse().ok()?, to.trim_start_matches('=').parse().ok()?))
}
