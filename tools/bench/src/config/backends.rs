//! Backend process: responds to every call with the local address, and reports the state of connections.
//!
//! `until ADDRESS` returns `yes` when a connection to the address was accepted. `open COUNT` returns when at
//! most this number is open, and `accepted COUNT` once this number was accepted in total. `accepted` returns
//! that number.

use std::io::BufRead as _;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use testkit::net::frames::{Answer, serve};

use crate::Error;

/// Payload size of the peers' clients, in both directions.
pub(super) const PAYLOAD: usize = 16;

pub(super) fn run() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let served = runtime.block_on(async { serve(|call| Answer::Ok(answer(call.local))) });
    println!("{}", served.address(0));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("until", address)) => {
                let address: IpAddr = address.parse()?;
                wait(|| served.connections_by_address().contains_key(&address));
            }
            Some(("open", count)) => {
                let count: usize = count.parse()?;
                wait(|| served.open_connections() <= count);
            }
            Some(("accepted", count)) => {
                let count: u64 = count.parse()?;
                wait(|| served.accepted_connections() >= count);
            }
            None if line == "accepted" => {
                println!("{}", served.accepted_connections());
                continue;
            }
            _ => return Err(format!("expected `until`, `open` or `accepted`, found {line:?}").into()),
        }
        println!("yes");
    }
    Ok(())
}

/// Polls a condition. Latency does not matter here.
fn wait(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns an echo of the peers' payload with the address, encoded by hand.
fn answer(local: IpAddr) -> Bytes {
    let address = local.to_string();
    let mut answer = vec![0x0a, PAYLOAD as u8];
    answer.extend_from_slice(&[b'k'; PAYLOAD]);
    // An address has at most 39 characters.
    answer.extend_from_slice(&[0x12, address.len() as u8]);
    answer.extend_from_slice(address.as_bytes());
    Bytes::from(answer)
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::prost::Message as _;
    use testkit::net::echo::EchoResponse;

    use super::*;

    #[test]
    fn an_answer_has_the_payload_and_the_address() {
        let response = EchoResponse::decode(answer(IpAddr::from([127, 7, 0, 9]))).expect("a message");
        assert_eq!(response.backend, "127.7.0.9");
        assert_eq!(response.payload, [b'k'; PAYLOAD]);
    }
}
