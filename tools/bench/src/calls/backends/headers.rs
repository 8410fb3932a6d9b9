//! Headers and trailers of a response in HPACK: literals the first time, then indices of the dynamic table.
//!
//! They cost a client as much as those of a common server. The fields are tonic's, with a load report.

use bytes::{BufMut as _, BytesMut};
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};

/// Index of `:status: 200` in the static table.
const OK: u8 = 0x88;
/// Literal with incremental indexing; the index of a static name is added.
const LITERAL: u8 = 0x40;
const CONTENT_TYPE: u8 = 31;
const DATE: u8 = 33;
/// Literal field without indexing.
const LITERAL_APART: u8 = 0x00;
/// Indexed field. The first dynamic index is the latest entry.
const PLACE: u8 = 0x80;
const FIRST: u8 = 62;
/// Dynamic table size update to 0.
const NO_TABLE: u8 = 0x20;
/// Default size of the dynamic table.
const DEFAULT_TABLE: u32 = 4_096;

/// Encoder state: contents of the client's dynamic table.
pub(crate) struct Headers {
    table: Table,
    /// Value of the load report trailer.
    report: Vec<u8>,
}

enum Table {
    Empty,
    /// Content type and date are indexed.
    Headers,
    /// Status and load report are indexed too.
    All,
    /// The client's table is smaller than needed. The first block sets its size to 0.
    Refused {
        is_said: bool,
    },
}

impl Headers {
    pub(crate) fn new() -> Headers {
        let report =
            OrcaLoadReport { cpu_utilization: 0.5, rps_fractional: 1_000.0, ..OrcaLoadReport::default() };
        let mut trailers = MetadataMap::new();
        trailers.insert_bin(evenkeel_orca::TRAILER, MetadataValue::from_bytes(&report.encode_to_vec()));
        let trailers = trailers.into_headers();
        let report =
            trailers.get(evenkeel_orca::TRAILER).map_or(Vec::new(), |value| value.as_bytes().to_vec());
        Headers { table: Table::Empty, report }
    }

    /// Applies the client's SETTINGS_HEADER_TABLE_SIZE. A table below the default is not used at all.
    pub(crate) fn table_size(&mut self, size: u32) {
        if size < DEFAULT_TABLE {
            self.table = Table::Refused { is_said: false };
        }
    }

    pub(crate) fn put_headers(&mut self, out: &mut BytesMut) {
        let grpc = b"application/grpc";
        let date = b"Thu, 01 Jan 2026 00:00:00 GMT";
        self.put_size(out);
        out.put_u8(OK);
        match self.table {
            Table::Empty => {
                out.put_u8(LITERAL | CONTENT_TYPE);
                put_string(out, grpc);
                out.put_u8(LITERAL | DATE);
                put_string(out, date);
                self.table = Table::Headers;
            }
            Table::Headers => out.put_slice(&[PLACE | (FIRST + 1), PLACE | FIRST]),
            Table::All => out.put_slice(&[PLACE | (FIRST + 3), PLACE | (FIRST + 2)]),
            Table::Refused { .. } => {
                put_apart(out, b"content-type", grpc);
                put_apart(out, b"date", date);
            }
        }
    }

    /// Writes the trailers of a successful call, or of one with a malformed request.
    pub(crate) fn put_trailers(&mut self, out: &mut BytesMut, is_ok: bool) {
        if !is_ok {
            // INVALID_ARGUMENT; too rare for the table.
            self.put_size(out);
            put_apart(out, b"grpc-status", b"3");
            return;
        }
        match self.table {
            // The headers have been sent before.
            Table::Empty | Table::Headers => {
                for (name, value) in [("grpc-status", &b"0"[..]), (evenkeel_orca::TRAILER, &self.report)] {
                    out.put_u8(LITERAL);
                    put_string(out, name.as_bytes());
                    put_string(out, value);
                }
                self.table = Table::All;
            }
            Table::All => out.put_slice(&[PLACE | (FIRST + 1), PLACE | FIRST]),
            Table::Refused { .. } => {
                self.put_size(out);
                put_apart(out, b"grpc-status", b"0");
                put_apart(out, evenkeel_orca::TRAILER.as_bytes(), &self.report);
            }
        }
    }

    fn put_size(&mut self, out: &mut BytesMut) {
        if let Table::Refused { is_said: is_said @ false } = &mut self.table {
            out.put_u8(NO_TABLE);
            *is_said = true;
        }
    }
}

fn put_apart(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.put_u8(LITERAL_APART);
    put_string(out, name);
    put_string(out, value);
}

/// Writes a string. All strings here are shorter than 127 bytes, so that the length takes one byte.
fn put_string(out: &mut BytesMut, string: &[u8]) {
    out.put_u8(string.len() as u8);
    out.put_slice(string);
}
