//! The headers and trailers of an answer, as HPACK: in full the first time, then as places in the connection's table.
//!
//! So they cost a client what those of a common server cost. They are those of tonic, with a load report.

use bytes::{BufMut as _, BytesMut};
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};

/// `:status: 200`, in the static table.
const OK: u8 = 0x88;
/// A literal that the table takes in, with its name; with a name of the static table it is added.
const LITERAL: u8 = 0x40;
const CONTENT_TYPE: u8 = 31;
const DATE: u8 = 33;
/// A literal that the table does not take in, with its name.
const LITERAL_APART: u8 = 0x00;
/// A place in the table. The first behind the static table is the last that was taken in.
const PLACE: u8 = 0x80;
const FIRST: u8 = 62;
/// The size of the table becomes 0.
const NO_TABLE: u8 = 0x20;
/// The size that a table has until a client wants another.
const DEFAULT_TABLE: u32 = 4_096;

/// What the client's table holds.
pub(crate) struct Headers {
    table: Table,
    /// The value of the trailer.
    report: Vec<u8>,
}

enum Table {
    Empty,
    /// Content type and date.
    Headers,
    /// The same, then status and load report.
    All,
    /// The client wants a smaller one than we rely on; the first block says that it is not used.
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

    /// The client's setting. Who wants a smaller table than the usual gets none.
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

    /// The status of a call that went well, or of one that could not be read.
    pub(crate) fn put_trailers(&mut self, out: &mut BytesMut, is_ok: bool) {
        if !is_ok {
            // INVALID_ARGUMENT; too rare for the table.
            self.put_size(out);
            put_apart(out, b"grpc-status", b"3");
            return;
        }
        match self.table {
            // Headers were sent before.
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

/// Every string here is shorter than 127 bytes, so that its length is one.
fn put_string(out: &mut BytesMut, string: &[u8]) {
    out.put_u8(string.len() as u8);
    out.put_slice(string);
}
