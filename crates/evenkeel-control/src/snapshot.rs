//! Immutable snapshot of all served resources, encoded once for all clients.
//!
//! A snapshot is replaced, never changed; streams compare the one that they last sent with the current one. A resource
//! is kept as the bytes of its field in a response. These bytes are the same in both protocol variants. Protobuf fields
//! may come in any order, so the bytes that differ between clients (the nonce) precede them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use evenkeel_proto::prost::encoding::{self, WireType};
use evenkeel_proto::prost_types::Any;

use crate::ResourceSet;
use crate::snapshot_cache::lock;

/// All served resources, by type URL. A type that was never set has no entry.
#[derive(Debug, Default)]
pub(crate) struct ResourceSnapshot {
    pub(crate) types: BTreeMap<String, Arc<TypeResources>>,
    /// Returned for types without an entry.
    pub(crate) empty: Arc<TypeResources>,
}

/// Resources of one type.
#[derive(Debug, Default)]
pub(crate) struct TypeResources {
    /// Version of the type: the number of changes.
    pub(crate) version: u64,
    pub(crate) items: BTreeMap<String, Arc<EncodedResource>>,
    /// Concatenations of resources that were sent, for reuse.
    joined: Mutex<Vec<JoinedResources>>,
}

/// Resource in its wire format.
#[derive(Debug, PartialEq)]
pub(crate) struct EncodedResource {
    pub(crate) name: String,
    /// Hash of the bytes, so that it is the same after a restart.
    pub(crate) version: u64,
    /// The `Any` as field 2: of a `DiscoveryResponse` in state of the world, of a `Resource` in delta.
    any: Bytes,
}

/// Protocol variant of an xDS stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolVariant {
    /// State of the world: responses contain all subscribed listeners or clusters, or complete resources of other
    /// types.
    StateOfTheWorld,
    /// Delta (incremental): responses contain changed resources and the names of removed ones.
    Delta,
}

/// Bytes of several resources, concatenated for one response.
#[derive(Debug)]
struct JoinedResources {
    variant: ProtocolVariant,
    of: Vec<Arc<EncodedResource>>,
    bytes: Bytes,
}

impl ResourceSnapshot {
    pub(crate) fn type_resources(&self, type_url: &str) -> &Arc<TypeResources> {
        self.types.get(type_url).unwrap_or(&self.empty)
    }

    /// Returns the snapshot of these resources. Unchanged resources and types are shared with this one and keep their
    /// versions.
    pub(crate) fn with_resources(&self, resources: &ResourceSet) -> ResourceSnapshot {
        let mut types = BTreeMap::<String, BTreeMap<String, Arc<EncodedResource>>>::new();
        // A type without resources stays as an empty entry: clients must be notified of the removal.
        for type_url in self.types.keys() {
            types.entry(type_url.clone()).or_default();
        }
        for (type_url, name, any) in resources.iter() {
            let before =
                self.type_resources(type_url).items.get(name).filter(|items| items.is_encoding_of(any));
            let items = before.map_or_else(|| Arc::new(EncodedResource::new(name, any)), Arc::clone);
            types.entry(type_url.to_owned()).or_default().insert(name.to_owned(), items);
        }
        let types = types.into_iter().map(|(type_url, items)| {
            let before = self.type_resources(&type_url);
            let is_same = self.types.contains_key(&type_url)
                && before.items.len() == items.len()
                && before
                    .items
                    .values()
                    .zip(items.values())
                    // Unchanged resources kept their allocation above.
                    .all(|(before, items)| Arc::ptr_eq(before, items));
            let kind = if is_same {
                Arc::clone(before)
            } else {
                Arc::new(TypeResources {
                    version: before.version.saturating_add(1),
                    items,
                    joined: Mutex::default(),
                })
            };
            (type_url, kind)
        });
        ResourceSnapshot { types: types.collect(), empty: Arc::clone(&self.empty) }
    }
}

impl TypeResources {
    /// Returns the bytes of these resources' fields, shared with all clients that get the same ones.
    pub(crate) fn chunks(
        &self,
        variant: ProtocolVariant,
        resources: Vec<Arc<EncodedResource>>,
    ) -> Vec<Bytes> {
        /// Maximum number of resources that are sent separately, without any copy.
        const MAX_SEPARATE: usize = 4;
        /// Maximum number of concatenations kept. Clients mostly subscribe to the same names.
        const MAX_JOINED: usize = 4;
        if resources.len() <= MAX_SEPARATE {
            return resources.iter().flat_map(|items| items.chunks(variant)).collect();
        }
        let mut joined = lock(&self.joined);
        let is_same = |of: &[Arc<EncodedResource>]| {
            of.len() == resources.len()
                && of.iter().zip(&resources).all(|(one, other)| Arc::ptr_eq(one, other))
        };
        if let Some(known) = joined.iter().find(|joined| joined.variant == variant && is_same(&joined.of)) {
            return vec![known.bytes.clone()];
        }
        let pieces: Vec<_> = resources.iter().flat_map(|items| items.chunks(variant)).collect();
        let mut bytes = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
        bytes.extend(pieces);
        let bytes = bytes.freeze();
        if joined.len() == MAX_JOINED {
            joined.remove(0);
        }
        joined.push(JoinedResources { variant, of: resources, bytes: bytes.clone() });
        vec![bytes]
    }
}

impl EncodedResource {
    fn new(name: &str, any: &Any) -> EncodedResource {
        let head = any_prefix(any);
        let mut bytes = BytesMut::with_capacity(head.len() + any.value.len());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&any.value);
        let bytes = bytes.freeze();
        EncodedResource { name: name.to_owned(), version: hash(&bytes), any: bytes }
    }

    fn is_encoding_of(&self, any: &Any) -> bool {
        let head = any_prefix(any);
        self.any.strip_prefix(&*head) == Some(&*any.value)
    }

    fn chunks(&self, variant: ProtocolVariant) -> impl Iterator<Item = Bytes> {
        let head = match variant {
            ProtocolVariant::StateOfTheWorld => None,
            ProtocolVariant::Delta => {
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

/// Returns the version of a resource as clients see it.
pub(crate) fn version_text(version: u64) -> String {
    format!("{version:016x}")
}

/// Returns an `Any` as field 2, up to the beginning of its value.
fn any_prefix(any: &Any) -> BytesMut {
    let mut inner = BytesMut::new();
    if !any.type_url.is_empty() {
        encoding::string::encode(1, &any.type_url, &mut inner);
    }
    if !any.value.is_empty() {
        encoding::encode_key(2, WireType::LengthDelimited, &mut inner);
        encoding::encode_varint(any.value.len() as u64, &mut inner);
    }
    let mut head = BytesMut::with_capacity(inner.len() + 10);
    // Field 2 holds the resource in both variants: of the response, or of the wrapper in delta.
    encoding::encode_key(2, WireType::LengthDelimited, &mut head);
    encoding::encode_varint((inner.len() + any.value.len()) as u64, &mut head);
    head.put(inner);
    head
}

/// FNV-1a: its result must not change between builds, because clients keep versions over a restart.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
