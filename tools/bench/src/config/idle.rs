//! All endpoints are replaced and the old ones die without any calls: later calls must find the new ones.

use std::time::Duration;

use super::harness::{ConfigHarness, FIRST, Shape, client, resources};
use super::{Args, VARIANTS, affordable};
use crate::Error;
use crate::table::Table;

const CALLS: u32 = 1_000;

/// Time without calls after the old endpoints have ended.
const SPELL: Duration = Duration::from_secs(1);

pub(super) fn table(args: &Args) -> Result<Table, Error> {
    let columns = ["variant", "endpoints", "failed"];
    let mut table = Table::new("Calls after an idle spell", &columns).note(format!(
        "Of {CALLS} calls, after an idle period in which all endpoints were replaced and the old ones stopped."
    ));
    for (name, variant) in VARIANTS {
        for &size in &args.sizes {
            let count = affordable(size, 2)?;
            let mut harness = ConfigHarness::new()?;
            harness.send(resources(Shape::OneCluster, &harness.endpoints(FIRST, count)?));
            let (mut client, _) = client(harness.control().address(), variant, None)?;
            client.ask(&format!("connected {count}"))?;
            harness.replace_backends(|harness| {
                harness.send(resources(Shape::OneCluster, &harness.endpoints(FIRST + 1, count)?));
                harness.acked().map(drop)
            })?;
            std::thread::sleep(SPELL);
            let [failed] = client.numbers(&format!("call {CALLS}"))?;
            table.row(vec![name.to_owned(), count.to_string(), failed.to_string()]);
        }
    }
    Ok(table)
}
