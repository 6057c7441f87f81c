//! Records that are changed in transit, and those of another implementation.

use proptest::prelude::*;
use snow::{Builder, TransportState};
use test_support::assert_refused;

use super::*;

const ALTERED: &str = "a message was altered, replayed or inserted in transit";

fn pair() -> [RecordKey; 2] {
    [(); 2].map(|()| RecordKey::new(Key::new([5; KEY_BYTES])).unwrap())
}

/// A record as it is on the wire.
fn sealed(key: &mut RecordKey, bytes: &[u8]) -> Vec<u8> {
    let mut record = bytes.to_vec();
    let tag = key.seal(&mut record).unwrap();
    [&record[..], &tag].concat()
}

/// Decrypts `record`.
fn opened(key: &mut RecordKey, record: &[u8]) -> io::Result<Vec<u8>> {
    let (bytes, &tag) = record.split_last_chunk::<TAG_BYTES>().unwrap();
    let mut bytes = bytes.to_vec();
    key.open(&mut bytes, tag).map(|()| bytes)
}

/// The two ends of a handshake by snow, and the key of what the first sends.
fn snow_pair() -> (TransportState, TransportState, Key) {
    let pattern = || "Noise_NN_25519_AESGCM_SHA256".parse().unwrap();
    let mut client = Builder::new(pattern()).build_initiator().unwrap();
    let mut server = Builder::new(pattern()).build_responder().unwrap();
    let (mut message, mut payload) = ([0; 100], [0; 100]);
    let length = client.write_message(&[], &mut message).unwrap();
    server.read_message(&message[..length], &mut payload).unwrap();
    let length = server.write_message(&[], &mut message).unwrap();
    client.read_message(&message[..length], &mut payload).unwrap();
    let (up, _) = client.dangerously_get_raw_split();
    let (client, server) = (client.into_transport_mode(), server.into_transport_mode());
    (client.unwrap(), server.unwrap(), Key::new(up))
}

#[test]
fn records_are_the_transport_messages_of_noise_also_after_a_change_of_key() {
    let (mut client, mut server, up) = snow_pair();
    let [mut seal, mut open] = [(); 2].map(|()| RecordKey::new(up.clone()).unwrap());
    for number in [FIRST, FIRST + 1, RECORDS_PER_KEY - 1, RECORDS_PER_KEY, RECORDS_PER_KEY + 1] {
        for key in [&mut seal, &mut open] {
            while key.next < number {
                sealed(key, b"");
            }
        }
        if number == RECORDS_PER_KEY {
            client.rekey_outgoing();
            server.rekey_incoming();
        }
        server.set_receiving_nonce(number);
        let (mut text, record) = ([0; 100], sealed(&mut seal, b"gradients"));
        let length = server.read_message(&record, &mut text).unwrap();
        assert_eq!(&text[..length], b"gradients", "record {number}");
        while client.sending_nonce() < number {
            client.write_message(&[], &mut text).unwrap();
        }
        let length = client.write_message(b"weights", &mut text).unwrap();
        assert_eq!(opened(&mut open, &text[..length]).unwrap(), b"weights", "record {number}");
    }
}

#[test]
fn a_record_does_not_open_under_another_key_or_before_its_turn() {
    let [mut from, mut to] = pair();
    let [first, second] = [b"first", b"other"].map(|bytes| sealed(&mut from, bytes));
    assert_ne!(first, second);
    assert_refused(opened(&mut to, &second), ALTERED);
    let mut other = RecordKey::new(Key::new([6; KEY_BYTES])).unwrap();
    assert_refused(opened(&mut other, &first), ALTERED);
    assert_eq!(opened(&mut to, &first).unwrap(), b"first");
    assert_eq!(opened(&mut to, &second).unwrap(), b"other");
}

#[test]
fn a_record_can_be_looked_at_before_it_is_opened() {
    let [mut from, mut to] = pair();
    let record = sealed(&mut from, b"the end");
    let (mut bytes, &tag) = (record[..7].to_vec(), record.last_chunk().unwrap());
    to.peek(&mut bytes, tag).unwrap();
    assert_eq!(bytes, b"the end");
    assert_eq!(opened(&mut to, &record).unwrap(), b"the end");
}

#[test]
#[ignore = "takes half a minute; `.ci/run` runs it"]
fn none_of_ten_million_forged_records_opens() {
    use crate::rng::{Key as RngKey, Purpose};
    let draws = RngKey::new(1, Purpose::Sample, 0, 0);
    let [mut from, mut to] = pair();
    let genuine = sealed(&mut from, b"a genuine record");
    for at in 0..10_000_000 {
        let mut forged = genuine.clone();
        let words = (0..2).flat_map(|i| draws.with(at).bits(i).to_le_bytes());
        // Any tag, for the contents of the genuine record.
        forged[16..].iter_mut().zip(words).for_each(|(byte, drawn)| *byte = drawn);
        assert_refused(opened(&mut to, &forged), ALTERED);
    }
    assert_eq!(opened(&mut to, &genuine).unwrap(), b"a genuine record");
}

proptest! {
    #[test]
    fn records_open_once_in_their_order_and_unchanged(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..6),
    ) {
        let [mut from, mut to] = pair();
        let records: Vec<_> = bodies.iter().map(|body| sealed(&mut from, body)).collect();
        for (body, record) in bodies.iter().zip(&records) {
            for bit in 0..8 * record.len() {
                let mut changed = record.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_refused(opened(&mut to, &changed), ALTERED);
            }
            if record.len() > TAG_BYTES {
                assert_refused(opened(&mut to, &record[1..]), ALTERED);
            }
            prop_assert_eq!(&opened(&mut to, record).unwrap(), body);
            // A repeated record has another number.
            assert_refused(opened(&mut to, record), ALTERED);
        }
    }
}
