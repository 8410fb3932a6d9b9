//! Generated header blocks: every representation of RFC 7541, valid and invalid, on one connection with one table.
//!
//! The oracle is a model of the table, and h2 as far as it goes: h2 ends the connection for a field with an invalid name or
//! value, where RFC 9113, section 8.1.1, ends the stream. The table must stay the same in any case.

use std::collections::VecDeque;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use crate::clients::{CallEnd, CallOutcome, RequestBody, ServerScript, run_h2, run_ours};
use crate::wire::*;

/// Name of a literal field.
#[derive(Clone, Debug)]
enum LiteralName {
    /// Index in the static or dynamic table.
    Indexed(usize),
    Text(Vec<u8>),
}

/// One representation of RFC 7541, section 6.
#[derive(Clone, Debug)]
enum FieldForm {
    Indexed(usize),
    Incremental(LiteralName, Vec<u8>),
    /// Without indexing, or never indexed.
    Plain(LiteralName, Vec<u8>, bool),
    /// Table size update behind a field, where none may be (RFC 7541, section 4.2).
    Resize(usize),
}

/// Header block of one response: a table size update in front, then the status, then fields.
#[derive(Clone, Debug)]
struct BlockPlan {
    resize: Option<usize>,
    fields: Vec<FieldForm>,
}

const TABLE_SIZE: usize = 4096;
const STATIC_LEN: usize = 61;

/// Entries of the static table that the generator refers to, without pseudo-header fields.
const STATIC: [(usize, &str, &str); 6] = [
    (16, "accept-encoding", "gzip, deflate"),
    (19, "accept", ""),
    (24, "cache-control", ""),
    (33, "date", ""),
    (54, "server", ""),
    (58, "user-agent", ""),
];

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => "[ -~]{0,20}".prop_map(|text| text.trim().as_bytes().to_vec()),
        2 => prop::sample::select(vec!["a", "b", "application/grpc"]).prop_map(|text| text.as_bytes().to_vec()),
        1 => (0..3_000_usize).prop_map(|len| vec![b'x'; len]),
        1 => prop::sample::select(vec![&b"nul\0"[..], b"line\nfeed", b"return\r", b"\x7f"]).prop_map(<[u8]>::to_vec),
        1 => Just(vec![0xff, 0x80]),
    ]
}

fn literal_name() -> impl Strategy<Value = LiteralName> {
    prop_oneof![
        4 => prop::sample::select(vec!["a", "bb", "x-trace", "grpc-message"]).prop_map(|name| LiteralName::Text(name.into())),
        2 => "[a-z][a-z0-9-]{0,8}".prop_filter_map("fields with a meaning to HTTP", |name| {
            (!["te", "host"].contains(&name.as_str())).then(|| LiteralName::Text(name.into()))
        }),
        1 => prop::sample::select(vec!["Upper", "sp ace", "", "co:lon"]).prop_map(|name| LiteralName::Text(name.into())),
        2 => prop::sample::select(STATIC.to_vec()).prop_map(|(index, _, _)| LiteralName::Indexed(index)),
        4 => (0..12_usize).prop_map(|index| LiteralName::Indexed(STATIC_LEN + 1 + index)),
    ]
}

fn field_form() -> impl Strategy<Value = FieldForm> {
    prop_oneof![
        4 => (0..12_usize).prop_map(|index| FieldForm::Indexed(STATIC_LEN + 1 + index)),
        1 => prop::sample::select(STATIC.to_vec()).prop_map(|(index, _, _)| FieldForm::Indexed(index)),
        8 => (literal_name(), value()).prop_map(|(name, value)| FieldForm::Incremental(name, value)),
        1 => prop_oneof![9 => Just(None), 1 => (0..TABLE_SIZE).prop_map(Some)].prop_map(|size| match size {
            Some(size) => FieldForm::Resize(size),
            None => FieldForm::Indexed(STATIC_LEN + 1),
        }),
        3 => (literal_name(), value(), any::<bool>()).prop_map(|(name, value, never)| FieldForm::Plain(name, value, never)),
    ]
}

fn block_plan() -> impl Strategy<Value = BlockPlan> {
    let resize =
        prop_oneof![6 => Just(None), 1 => (0..TABLE_SIZE + 1).prop_map(Some), 1 => Just(Some(TABLE_SIZE))];
    (resize, prop::collection::vec(field_form(), 0..6))
        .prop_map(|(resize, fields)| BlockPlan { resize, fields })
}

impl BlockPlan {
    fn bytes(&self) -> Vec<u8> {
        let mut block = Vec::new();
        if let Some(size) = self.resize {
            integer(&mut block, 0x20, 5, size);
        }
        block.push(0x88);
        for field in &self.fields {
            let (first, prefix, name, value) = match field {
                FieldForm::Indexed(index) => {
                    integer(&mut block, 0x80, 7, *index);
                    continue;
                }
                FieldForm::Resize(size) => {
                    integer(&mut block, 0x20, 5, *size);
                    continue;
                }
                FieldForm::Incremental(name, value) => (0x40, 6, name, value),
                FieldForm::Plain(name, value, is_never) => (if *is_never { 0x10 } else { 0 }, 4, name, value),
            };
            match name {
                LiteralName::Indexed(index) => integer(&mut block, first, prefix, *index),
                LiteralName::Text(name) => {
                    block.push(first);
                    string(&mut block, name);
                }
            }
            string(&mut block, value);
        }
        block
    }
}

/// Model of the table of RFC 7541, section 2.3, as byte strings.
#[derive(Debug)]
struct TableModel {
    entries: VecDeque<(Vec<u8>, Vec<u8>)>,
    max_size: usize,
}

impl TableModel {
    fn entry(&self, index: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        if index > STATIC_LEN {
            return self.entries.get(index - STATIC_LEN - 1).cloned();
        }
        let (_, name, value) = STATIC.into_iter().find(|(known, _, _)| *known == index)?;
        Some((name.into(), value.into()))
    }

    fn shrink_to(&mut self, size: usize) {
        let len = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + 32;
        while self.entries.iter().map(len).sum::<usize>() > size {
            self.entries.pop_back();
        }
    }

    /// Returns the fields of a block; `None` if it cannot be decoded.
    fn decode(&mut self, block: &BlockPlan) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        if let Some(size) = block.resize {
            self.max_size = size;
            self.shrink_to(size);
        }
        let mut fields = Vec::new();
        for field in &block.fields {
            let (name, value, is_added) = match field {
                FieldForm::Indexed(index) => {
                    fields.push(self.entry(*index)?);
                    continue;
                }
                FieldForm::Resize(_) => return None,
                FieldForm::Incremental(name, value) => (name, value, true),
                FieldForm::Plain(name, value, _) => (name, value, false),
            };
            let name = match name {
                LiteralName::Indexed(index) => self.entry(*index)?.0,
                LiteralName::Text(name) => name.clone(),
            };
            fields.push((name.clone(), value.clone()));
            if is_added {
                let size = name.len() + value.len() + 32;
                self.shrink_to(self.max_size.saturating_sub(size));
                if size <= self.max_size {
                    self.entries.push_front((name, value.clone()));
                }
            }
        }
        Some(fields)
    }
}

/// Returns the headers of valid fields; `None` if one is invalid (RFC 9113, section 8.2.1).
fn headers(fields: &[(Vec<u8>, Vec<u8>)]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(HeaderName::from_lowercase(name).ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    Some(headers)
}

/// Returns the outcomes that RFC 7541 and RFC 9113 prescribe.
fn expected(blocks: &[BlockPlan]) -> Vec<CallOutcome> {
    let mut table = TableModel { entries: VecDeque::new(), max_size: TABLE_SIZE };
    let mut is_broken = false;
    let mut outcomes = Vec::new();
    for block in blocks {
        let fields = if is_broken { None } else { table.decode(block) };
        is_broken |= fields.is_none();
        let failed = |end| CallOutcome { head: None, body: Vec::new(), end };
        outcomes.push(match fields.map(|fields| headers(&fields)) {
            None => failed(CallEnd::ConnectionError(COMPRESSION_ERROR)),
            Some(None) => failed(CallEnd::StreamError(PROTOCOL_ERROR)),
            Some(Some(headers)) => {
                CallOutcome { head: Some((200, headers)), body: Vec::new(), end: CallEnd::Complete(None) }
            }
        });
    }
    outcomes
}

fn check(blocks: &[BlockPlan]) -> Result<(), TestCaseError> {
    let mut bytes = frame(SETTINGS, 0, 0, &[]);
    let mut cuts = vec![bytes.len()];
    for (index, block) in blocks.iter().enumerate() {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * index as u32 + 1, &block.bytes()));
        cuts.push(bytes.len());
    }
    let calls = vec![RequestBody::Absent; blocks.len()];
    let script = ServerScript { bytes, cuts, reads_early: true, calls };
    let ours = run_ours(&script);
    prop_assert_eq!(&ours, &expected(blocks));
    for (ours, theirs) in ours.iter().zip(&run_h2(&script)) {
        // From its first invalid field on, h2 has no outcome to compare with.
        if matches!(theirs.end, CallEnd::ConnectionError(_)) {
            break;
        }
        if !matches!(ours.end, CallEnd::StreamError(_)) {
            prop_assert_eq!(ours, theirs);
        }
    }
    Ok(())
}

/// One invalid value under a name; later fields take the name by its index. Only the first response is malformed.
#[test]
fn a_name_stays_valid_after_an_invalid_value() {
    let newest = || LiteralName::Indexed(STATIC_LEN + 1);
    let blocks = [
        BlockPlan {
            resize: None,
            fields: vec![FieldForm::Incremental(
                LiteralName::Text(b"x-trace".to_vec()),
                b"line\nfeed".to_vec(),
            )],
        },
        BlockPlan { resize: None, fields: vec![FieldForm::Plain(newest(), b"valid".to_vec(), false)] },
        BlockPlan { resize: None, fields: vec![FieldForm::Incremental(newest(), b"valid".to_vec())] },
        BlockPlan { resize: None, fields: vec![FieldForm::Indexed(STATIC_LEN + 1)] },
        BlockPlan { resize: None, fields: vec![FieldForm::Indexed(STATIC_LEN + 2)] },
    ];
    let ends = expected(&blocks).into_iter().map(|call| matches!(call.end, CallEnd::Complete(_)));
    assert_eq!(ends.collect::<Vec<_>>(), [false, true, true, true, false]);
    check(&blocks).expect("the outcomes of the model");
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 5_000, ..ProptestConfig::with_cases(3_000) })]

    #[test]
    fn tables_stay_the_same(blocks in prop::collection::vec(block_plan(), 1..12)) {
        check(&blocks)?;
    }
}
