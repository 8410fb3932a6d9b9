//! Reading a mesh from YAML. Everything is read before anything is given up: all errors are told at once.
//!
//! Here stands what a value may look like; what values mean together is left to `check`.

mod cluster;
mod service;

use std::collections::BTreeMap;
use std::time::Duration;

use super::errors::{At, MeshError, MeshErrors, Place};
use super::policy::unknown;
use super::values::parse_duration;
use super::yaml::{Key, Node, Value};
use super::{Mesh, Share, check, yaml};

pub(super) fn mesh(text: &str) -> Result<Mesh, MeshErrors> {
    let root = yaml::parse(text)?;
    let mut reader = Reader { errors: Vec::new() };
    let mesh = reader.mesh(&root);
    // What could not be read is not there to be checked: references to it would be told as a second error.
    if !reader.errors.is_empty() {
        return Err(MeshErrors::new(reader.errors));
    }
    check::mesh(&mesh, Some(&root))?;
    Ok(mesh)
}

struct Reader {
    errors: Vec<MeshError>,
}

/// The entries of a mapping whose keys are known.
struct Fields<'n> {
    entries: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(known, _)| known.text == key).map(|(_, node)| node)
    }
}

impl Reader {
    fn mesh(&mut self, root: &Node) -> Mesh {
        let at = At::Root;
        let mut mesh = Mesh::new();
        let Some(fields) = self.fields(root, &at, &["services", "clusters"]) else { return mesh };
        if let Some(node) = fields.get("services") {
            mesh.services = self.named(node, &at.key("services"), Reader::service);
        }
        if let Some(node) = fields.get("clusters") {
            mesh.clusters = self.named(node, &at.key("clusters"), Reader::cluster);
        }
        mesh
    }

    /// A mapping from names of the user's own.
    fn named<T>(
        &mut self,
        node: &Node,
        at: &At<'_>,
        read: impl Fn(&mut Reader, &str, &Node, &At<'_>) -> Option<T>,
    ) -> BTreeMap<String, T> {
        let mut named = BTreeMap::new();
        for (key, node) in self.entries(node, at) {
            let at = at.key(&key.text);
            if key.text.is_empty() {
                self.problem(key.place, &at, "expected a name, found an empty one");
            }
            if let Some(value) = read(self, &key.text, node, &at) {
                named.insert(key.text.clone(), value);
            }
        }
        named
    }

    fn problem(&mut self, place: Option<Place>, at: &At<'_>, text: impl Into<String>) {
        self.errors.push(MeshError::new(place, at.to_string(), text.into()));
    }

    fn expected(&mut self, expected: &str, node: &Node, at: &At<'_>) {
        self.problem(node.place, at, format!("expected {expected}, found {}", node.found()));
    }

    /// A mapping with some of these keys and no others.
    fn fields<'n>(&mut self, node: &'n Node, at: &At<'_>, known: &[&str]) -> Option<Fields<'n>> {
        let Value::Map(entries) = &node.value else {
            self.expected(&format!("a mapping with {}", known.join(", ")), node, at);
            return None;
        };
        for (key, _) in entries {
            if !known.contains(&key.text.as_str()) {
                self.problem(key.place, &at.key(&key.text), unknown("key", &key.text, known));
            }
        }
        Some(Fields { entries })
    }

    fn entries<'n>(&mut self, node: &'n Node, at: &At<'_>) -> &'n [(Key, Node)] {
        if let Value::Map(entries) = &node.value {
            return entries;
        }
        self.expected("a mapping", node, at);
        &[]
    }

    fn items<'n>(&mut self, node: &'n Node, at: &At<'_>) -> &'n [Node] {
        if let Value::List(items) = &node.value {
            return items;
        }
        self.expected("a list", node, at);
        &[]
    }

    /// A text that is not empty.
    fn text(&mut self, node: &Node, at: &At<'_>) -> Option<String> {
        match &node.value {
            Value::Text(text) if !text.is_empty() => return Some(text.clone()),
            Value::Text(_) => self.problem(node.place, at, "expected a text, found an empty one"),
            Value::Bool(_) | Value::Whole(_) | Value::Float(_) => {
                let found = node.found();
                self.problem(
                    node.place,
                    at,
                    format!("expected a text, found {found}; write \"{found}\" in quotes"),
                );
            }
            Value::Null | Value::List(_) | Value::Map(_) => self.expected("a text", node, at),
        }
        None
    }

    fn whole<T: TryFrom<i128>>(&mut self, node: &Node, at: &At<'_>, expected: &str) -> Option<T> {
        let number = match node.value {
            Value::Whole(number) => T::try_from(number).ok(),
            _ => None,
        };
        if number.is_none() {
            self.expected(expected, node, at);
        }
        number
    }

    fn yes(&mut self, node: &Node, at: &At<'_>) -> Option<bool> {
        if let Value::Bool(yes) = node.value {
            return Some(yes);
        }
        self.expected("true or false", node, at);
        None
    }

    fn duration(&mut self, node: &Node, at: &At<'_>) -> Option<Duration> {
        let duration = match &node.value {
            Value::Text(text) => parse_duration(text),
            _ => None,
        };
        if duration.is_none() {
            self.expected("a duration such as 2s or 250ms", node, at);
        }
        duration
    }

    fn share(&mut self, node: &Node, at: &At<'_>) -> Option<Share> {
        let share = match &node.value {
            Value::Text(text) => Share::parse(text),
            _ => None,
        };
        if share.is_none() {
            self.expected("0% to 100%, with a percent sign", node, at);
        }
        share
    }

    fn percent(&mut self, node: &Node, at: &At<'_>) -> Option<u32> {
        let share = self.share(node, at)?;
        if share.whole_percent().is_none() {
            self.expected("a whole number of percent", node, at);
        }
        share.whole_percent()
    }

    /// One of some words; dashes and underscores are the same.
    fn word<T: Copy>(&mut self, node: &Node, at: &At<'_>, words: &[(&str, T)]) -> Option<T> {
        let found = match &node.value {
            Value::Text(text) => {
                words.iter().find(|(word, _)| word.replace('-', "_") == text.replace('-', "_"))
            }
            _ => None,
        };
        if found.is_none() {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.expected(&format!("one of {}", words.join(", ")), node, at);
        }
        found.map(|(_, value)| *value)
    }

    /// Reads a field if it is there.
    fn field<T>(
        &mut self,
        fields: &Fields<'_>,
        at: &At<'_>,
        key: &str,
        read: impl FnOnce(&mut Reader, &Node, &At<'_>) -> Option<T>,
    ) -> Option<T> {
        let node = fields.get(key)?;
        read(self, node, &at.key(key))
    }

    fn is_yes(&mut self, fields: &Fields<'_>, at: &At<'_>, key: &str) -> bool {
        self.field(fields, at, key, Reader::yes).unwrap_or_default()
    }

    /// The one of these keys that is there. Several, or none where one is required, are an error.
    fn one_of<'k, 'n>(
        &mut self,
        (fields, node): (&Fields<'n>, &Node),
        at: &At<'_>,
        keys: &[&'k str],
        required: bool,
    ) -> Option<(&'k str, &'n Node)> {
        let mut found = keys.iter().filter_map(|key| Some((*key, fields.get(key)?)));
        let first = found.next();
        if let (Some((one, _)), Some((other, node))) = (first, found.next()) {
            let text = format!("expected only one of {}, found {other} beside {one}", keys.join(", "));
            self.problem(node.place, &at.key(other), text);
        }
        if first.is_none() && required {
            self.problem(node.place, at, format!("expected one of {}", keys.join(", ")));
        }
        first
    }
}
