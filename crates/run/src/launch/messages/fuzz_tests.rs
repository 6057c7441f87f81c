//! Damaged messages between parent and ranks: an error, and never a crash or a large allocation.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::launch::Stop;
use crate::launch::messages::{FromRank, ToRank};
use crate::mutated;
use crate::transport::channel::Channel;

fn frame(message: &impl serde::Serialize) -> Vec<u8> {
    let body = serde_json::to_vec(message).unwrap();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

#[test]
fn a_damaged_message_is_an_error_or_another_message() {
    let whole = [
        frame(&FromRank::Finished),
        frame(&FromRank::Saved),
        frame(&ToRank::Stop(Stop::Interrupt)),
        [frame(&FromRank::Finished), frame(&FromRank::Saved)].concat(),
        u32::MAX.to_le_bytes().to_vec(),
    ];
    let (mut received, mut refused, mut waiting) = (0, 0, 0);
    for bytes in mutated::inputs(&whole, 3000, 27) {
        let (mut from, to) = UnixStream::pair().unwrap();
        let mut to = Channel::new(to).unwrap();
        from.write_all(&bytes).unwrap();
        drop(from);
        match to.receive::<FromRank>() {
            Ok(messages) if messages.is_empty() => waiting += 1,
            Ok(_) => received += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(received > 100 && refused > 500 && waiting > 100, "{received} {refused} {waiting}");
}
