//! Reads a mesh from a YAML tree.
//!
//! It checks the form of each value, and reports all errors at once. Checks across values are left to `check`.

mod cluster;
mod service;

use std::collections::BTreeMap;
use std::time::Duration;

use super::errors::{MeshError, MeshErrors, MeshPath, SourcePosition};
use super::policy::unknown_name_message;
use super::values::parse_duration;
use super::yaml::{YamlKey, YamlNode, YamlValue};
use super::{Mesh, TrafficFraction, check, yaml};

pub(super) fn mesh(text: &str) -> Result<Mesh, MeshErrors> {
    let root = yaml::parse(text)?;
    let mut reader = MeshReader { errors: Vec::new(), incomplete: Vec::new() };
    let mesh = reader.mesh(&root);
    let number_of_errors = reader.errors.len();
    let is_any_outside =
        number_of_errors > reader.incomplete.iter().map(|entry| entry.number_of_errors).sum();
    // An error outside the entries may hide a whole section, to which others refer.
    if !is_any_outside && let Err(errors) = check::mesh(&mesh, Some(&root)) {
        let MeshReader { errors: read, incomplete } = &mut reader;
        read.extend(errors.into_iter().filter(|error| !incomplete.iter().any(|entry| entry.explains(error))));
    }
    if reader.errors.is_empty() { Ok(mesh) } else { Err(MeshErrors::new(reader.errors)) }
}

struct MeshReader {
    errors: Vec<MeshError>,
    incomplete: Vec<IncompleteEntry>,
}

/// Service or cluster with values that could not be read.
struct IncompleteEntry {
    path: String,
    number_of_errors: usize,
}

impl IncompleteEntry {
    /// Returns true if an error of `check` may only be due to the missing values. Policies are read as a whole, so their
    /// errors are independent.
    fn explains(&self, error: &MeshError) -> bool {
        let inside = error.path.strip_prefix(&self.path);
        inside.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with(['.', '[']) && !rest.starts_with(".policy")
        })
    }
}

/// Entries of a mapping with a known set of keys.
struct MappingFields<'n> {
    entries: &'n [(YamlKey, YamlNode)],
}

impl<'n> MappingFields<'n> {
    fn get(&self, key: &str) -> Option<&'n YamlNode> {
        self.entries.iter().find(|(known, _)| known.text == key).map(|(_, node)| node)
    }
}

impl MeshReader {
    fn mesh(&mut self, root: &YamlNode) -> Mesh {
        let at = MeshPath::Root;
        let mut mesh = Mesh::new();
        let Some(fields) = self.fields(root, &at, &["services", "clusters"]) else { return mesh };
        if let Some(node) = fields.get("services") {
            mesh.services = self.read_map(node, &at.key("services"), MeshReader::service);
        }
        if let Some(node) = fields.get("clusters") {
            mesh.clusters = self.read_map(node, &at.key("clusters"), MeshReader::cluster);
        }
        mesh
    }

    /// Reads a mapping with names that the user chooses.
    fn read_map<T>(
        &mut self,
        node: &YamlNode,
        at: &MeshPath<'_>,
        read: impl Fn(&mut MeshReader, &str, &YamlNode, &MeshPath<'_>) -> Option<T>,
    ) -> BTreeMap<String, T> {
        let mut named = BTreeMap::new();
        for (key, node) in self.entries(node, at) {
            let at = at.key(&key.text);
            if key.text.is_empty() {
                self.push_error(key.position, &at, "expected a name, found an empty one");
            }
            let before = self.errors.len();
            if let Some(value) = read(self, &key.text, node, &at) {
                named.insert(key.text.clone(), value);
            }
            let number_of_errors = self.errors.len() - before;
            if number_of_errors > 0 {
                self.incomplete.push(IncompleteEntry { path: at.to_string(), number_of_errors });
            }
        }
        named
    }

    fn push_error(&mut self, position: Option<SourcePosition>, at: &MeshPath<'_>, text: impl Into<String>) {
        self.errors.push(MeshError::new(position, at.to_string(), text.into()));
    }

    fn push_expected(&mut self, expected: &str, node: &YamlNode, at: &MeshPath<'_>) {
        self.push_error(node.position, at, format!("expected {expected}, found {}", node.describe()));
    }

    /// Reads a mapping that may contain these keys and no others.
    fn fields<'n>(
        &mut self,
        node: &'n YamlNode,
        at: &MeshPath<'_>,
        known: &[&str],
    ) -> Option<MappingFields<'n>> {
        let YamlValue::Mapping(entries) = &node.value else {
            self.push_expected(&format!("a mapping with {}", known.join(", ")), node, at);
            return None;
        };
        for (key, _) in entries {
            if !known.contains(&key.text.as_str()) {
                self.push_error(
                    key.position,
                    &at.key(&key.text),
                    unknown_name_message("key", &key.text, known),
                );
            }
        }
        Some(MappingFields { entries })
    }

    fn entries<'n>(&mut self, node: &'n YamlNode, at: &MeshPath<'_>) -> &'n [(YamlKey, YamlNode)] {
        if let YamlValue::Mapping(entries) = &node.value {
            return entries;
        }
        self.push_expected("a mapping", node, at);
        &[]
    }

    fn items<'n>(&mut self, node: &'n YamlNode, at: &MeshPath<'_>) -> &'n [YamlNode] {
        if let YamlValue::Sequence(items) = &node.value {
            return items;
        }
        self.push_expected("a list", node, at);
        &[]
    }

    /// Reads a text that is not empty.
    fn text(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<String> {
        match &node.value {
            YamlValue::String(text) if !text.is_empty() => return Some(text.clone()),
            YamlValue::String(_) => {
                self.push_error(node.position, at, "expected a string, found an empty one");
            }
            YamlValue::Bool(_) | YamlValue::Integer(_) | YamlValue::Float(_) => {
                let found = node.describe();
                self.push_error(
                    node.position,
                    at,
                    format!("expected a string, found {found}; write \"{found}\" in quotes"),
                );
            }
            YamlValue::Null | YamlValue::Sequence(_) | YamlValue::Mapping(_) => {
                self.push_expected("a string", node, at);
            }
        }
        None
    }

    fn integer<T: TryFrom<i128>>(&mut self, node: &YamlNode, at: &MeshPath<'_>, expected: &str) -> Option<T> {
        let number = match node.value {
            YamlValue::Integer(number) => T::try_from(number).ok(),
            _ => None,
        };
        if number.is_none() {
            self.push_expected(expected, node, at);
        }
        number
    }

    fn boolean(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<bool> {
        if let YamlValue::Bool(yes) = node.value {
            return Some(yes);
        }
        self.push_expected("true or false", node, at);
        None
    }

    fn duration(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<Duration> {
        let duration = match &node.value {
            YamlValue::String(text) => parse_duration(text),
            _ => None,
        };
        if duration.is_none() {
            self.push_expected("a duration such as 2s or 250ms", node, at);
        }
        duration
    }

    fn share(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<TrafficFraction> {
        let share = match &node.value {
            YamlValue::String(text) => TrafficFraction::parse(text),
            _ => None,
        };
        if share.is_none() {
            self.push_expected("0% to 100%, with a percent sign", node, at);
        }
        share
    }

    fn percent(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<u32> {
        let share = self.share(node, at)?;
        if share.whole_percent().is_none() {
            self.push_expected("a whole number of percent", node, at);
        }
        share.whole_percent()
    }

    /// Reads one of several words. Dashes and underscores are equivalent.
    fn keyword<T: Copy>(&mut self, node: &YamlNode, at: &MeshPath<'_>, words: &[(&str, T)]) -> Option<T> {
        let found = match &node.value {
            YamlValue::String(text) => {
                words.iter().find(|(word, _)| word.replace('-', "_") == text.replace('-', "_"))
            }
            _ => None,
        };
        if found.is_none() {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.push_expected(&format!("one of {}", words.join(", ")), node, at);
        }
        found.map(|(_, value)| *value)
    }

    /// Reads a field if it is present.
    fn field<T>(
        &mut self,
        fields: &MappingFields<'_>,
        at: &MeshPath<'_>,
        key: &str,
        read: impl FnOnce(&mut MeshReader, &YamlNode, &MeshPath<'_>) -> Option<T>,
    ) -> Option<T> {
        let node = fields.get(key)?;
        read(self, node, &at.key(key))
    }

    fn flag(&mut self, fields: &MappingFields<'_>, at: &MeshPath<'_>, key: &str) -> bool {
        self.field(fields, at, key, MeshReader::boolean).unwrap_or_default()
    }

    /// Returns the one of these keys that is present. Several, or none where one is required, are an error.
    fn one_of<'k, 'n>(
        &mut self,
        (fields, node): (&MappingFields<'n>, &YamlNode),
        at: &MeshPath<'_>,
        keys: &[&'k str],
        required: bool,
    ) -> Option<(&'k str, &'n YamlNode)> {
        let mut found = keys.iter().filter_map(|key| Some((*key, fields.get(key)?)));
        let first = found.next();
        if let (Some((one, _)), Some((other, node))) = (first, found.next()) {
            let text = format!("expected only one of {}, found {other} beside {one}", keys.join(", "));
            self.push_error(node.position, &at.key(other), text);
        }
        if first.is_none() && required {
            self.push_error(node.position, at, format!("expected one of {}", keys.join(", ")));
        }
        first
    }
}
