//! What is served at one moment, encoded once for everybody.
//!
//! A world is replaced, never changed; streams compare the one that they told of with the one that is. A resource is
//! kept as the bytes of its field in a response, which are the same in both variants of the protocol: fields of a
//! message may come in any order, so what differs between clients (the nonce) stands in a few bytes before them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use evenkeel_proto::prost::encoding::{self, WireType};
use evenkeel_proto::prost_types::Any;

use crate::Resources;

/// Everything that is served, by type URL. Types that were never set have no kind.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) kinds: BTreeMap<String, Arc<Kind>>,
    /// Stands for the kinds that are not there.
    pub(crate) nothing: Arc<Kind>,
}

/// The resources of one type.
#[derive(Debug, Default)]
pub(crate) struct Kind {
    /// How often it changed.
    pub(crate) version: u64,
    pub(crate) held: BTreeMap<String, Arc<Held>>,
    joined: Mutex<Vec<Joined>>,
}

/// A resource as it is sent.
#[derive(Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) name: String,
    /// Follows from the bytes, so that it is the same after a restart.
    pub(crate) version: u64,
    /// The `Any` as field 2: of a response in the state of the world, of a `Resource` in delta.
    any: Bytes,
}

/// Which variant of the protocol a stream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Responses hold all there is to know of a type, or of a resource.
    StateOfTheWorld,
    /// Responses hold what changed, and name what is gone.
    Delta,
}

/// Many resources in one piece.
#[derive(Debug)]
struct Joined {
    variant: Variant,
    of: Vec<Arc<Held>>,
    bytes: Bytes,
}

impl World {
    pub(crate) fn kind(&self, type_url: &str) -> &Arc<Kind> {
        self.kinds.get(type_url).unwrap_or(&self.nothing)
    }

    /// The world with these resources. What did not change is shared with this one, and keeps its version.
    pub(crate) fn with(&self, resources: &Resources) -> World {
        let mut kinds = BTreeMap::<String, BTreeMap<String, Arc<Held>>>::new();
        // A type that is gone stays, empty: clients have to be told.
        for type_url in self.kinds.keys() {
            kinds.entry(type_url.clone()).or_default();
        }
        for (type_url, name, any) in resources.iter() {
            let before = self.kind(type_url).held.get(name).filter(|held| held.is(any));
            let held = before.map_or_else(|| Arc::new(Held::new(name, any)), Arc::clone);
            kinds.entry(type_url.to_owned()).or_default().insert(name.to_owned(), held);
        }
        let kinds = kinds.into_iter().map(|(type_url, held)| {
            let before = self.kind(&type_url);
            let is_same = self.kinds.contains_key(&type_url)
                && before.held.len() == held.len()
                && before.held.values().zip(held.values()).all(|(before, held)| Arc::ptr_eq(before, held));
            let kind = if is_same {
                Arc::clone(before)
            } else {
                Arc::new(Kind { version: before.version.saturating_add(1), held, joined: Mutex::default() })
            };
            (type_url, kind)
        });
        World { kinds: kinds.collect(), nothing: Arc::clone(&self.nothing) }
    }
}

impl Kind {
    /// Resources as the bytes of their fields, shared with all who are sent the same.
    pub(crate) fn pieces(&self, variant: Variant, resources: Vec<Arc<Held>>) -> Vec<Bytes> {
        /// Fewer go as they are: they need no copy at all.
        const FEW: usize = 4;
        /// How many different answers are kept. Clients mostly ask for the same.
        const KEPT: usize = 4;
        if resources.len() <= FEW {
            return resources.iter().flat_map(|held| held.pieces(variant)).collect();
        }
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |of: &[Arc<Held>]| {
            of.len() == resources.len()
                && of.iter().zip(&resources).all(|(one, other)| Arc::ptr_eq(one, other))
        };
        if let Some(known) = joined.iter().find(|joined| joined.variant == variant && is_same(&joined.of)) {
            return vec![known.bytes.clone()];
        }
        let pieces: Vec<_> = resources.iter().flat_map(|held| held.pieces(variant)).collect();
        let mut bytes = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
        bytes.extend(pieces);
        let bytes = bytes.freeze();
        if joined.len() == KEPT {
            joined.remove(0);
        }
        joined.push(Joined { variant, of: resources, bytes: bytes.clone() });
        vec![bytes]
    }
}

impl Held {
    fn new(name: &str, any: &Any) -> Held {
        let head = head(any);
        let mut bytes = BytesMut::with_capacity(head.len() + any.value.len());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&any.value);
        let bytes = bytes.freeze();
        Held { name: name.to_owned(), version: hash(&bytes), any: bytes }
    }

    fn is(&self, any: &Any) -> bool {
        let head = head(any);
        self.any.strip_prefix(&*head) == Some(&*any.value)
    }

    fn pieces(&self, variant: Variant) -> impl Iterator<Item = Bytes> {
        let head = match variant {
            Variant::StateOfTheWorld => None,
            Variant::Delta => {
                let mut own = BytesMut::new();
                encoding::string::encode(1, &version_text(self.version), &mut own);
                encoding::string::encode(3, &self.name, &mut own);
                let mut head = BytesMut::new();
                encoding::encode_key(2, WireType::LengthDelimited, &mut head);
                encoding::encode_varint((own.len() + self.any.len()) as u64, &mut head);
                head.extend_from_slice(&own);
                Some(head.freeze())
            }
        };
        head.into_iter().chain([self.any.clone()])
    }
}

/// The version of a resource as clients see it.
pub(crate) fn version_text(version: u64) -> String {
    format!("{version:016x}")
}

/// An `Any` as field 2, up to where its value begins.
fn head(any: &Any) -> BytesMut {
    let mut inner = BytesMut::new();
    if !any.type_url.is_empty() {
        encoding::string::encode(1, &any.type_url, &mut inner);
    }
    if !any.value.is_empty() {
        encoding::encode_key(2, WireType::LengthDelimited, &mut inner);
        encoding::encode_varint(any.value.len() as u64, &mut inner);
    }
    let mut head = BytesMut::with_capacity(inner.len() + 10);
    encoding::encode_key(2, WireType::LengthDelimited, &mut head);
    encoding::encode_varint((inner.len() + any.value.len()) as u64, &mut head);
    head.put(inner);
    head
}

/// FNV-1a, which will be the same in every build.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
