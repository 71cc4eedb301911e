//! Changes a model without knowing what its fields mean: the tree of protobuf fields, whose lengths
//! stay right, so that a change reaches the code behind the parser.

use crate::random::Random;

/// A field of a message: its number and wire type, and what it holds.
#[derive(Clone, Debug)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

/// The deepest message; models have about ten levels.
const DEEPEST: usize = 12;

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let (mut found, mut shift) = (0_u64, 0);
    loop {
        let byte = *bytes.get(*at)?;
        *at += 1;
        found |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(found);
        }
        shift += 7;
    }
}

/// The fields of a message; `None` if the bytes are none.
fn parse(bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let (mut at, mut fields) = (0, Vec::new());
    while at < bytes.len() {
        let tag = varint(bytes, &mut at)?;
        let number = tag >> 3;
        let mut take = |len: usize| {
            let found = bytes.get(at..at.checked_add(len)?)?;
            at += len;
            Some(found)
        };
        let value = match tag & 7 {
            0 => Value::Varint(varint(bytes, &mut at)?),
            1 => Value::Fixed64(take(8)?.try_into().ok()?),
            5 => Value::Fixed32(take(4)?.try_into().ok()?),
            2 => {
                let len = usize::try_from(varint(bytes, &mut at)?).ok()?;
                let held = bytes.get(at..at.checked_add(len)?)?;
                at += len;
                // Names and numbers may look like messages, which does no harm.
                let message = (depth > 0 && len > 1).then(|| parse(held, depth - 1)).flatten();
                message.map_or_else(|| Value::Bytes(held.to_vec()), Value::Message)
            }
            _ => return None,
        };
        if number == 0 {
            return None;
        }
        fields.push(Field { number, value });
    }
    Some(fields)
}

#[allow(clippy::cast_possible_truncation)] // seven bits at a time
fn put(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn written(fields: &[Field], into: &mut Vec<u8>) {
    for Field { number, value } in fields {
        let wire = match value {
            Value::Varint(_) => 0,
            Value::Fixed64(_) => 1,
            Value::Fixed32(_) => 5,
            Value::Bytes(_) | Value::Message(_) => 2,
        };
        put(number << 3 | wire, into);
        match value {
            Value::Varint(number) => put(*number, into),
            Value::Fixed64(bytes) => into.extend(bytes),
            Value::Fixed32(bytes) => into.extend(bytes),
            Value::Bytes(bytes) => {
                put(bytes.len() as u64, into);
                into.extend(bytes);
            }
            Value::Message(fields) => {
                let mut inner = Vec::new();
                written(fields, &mut inner);
                put(inner.len() as u64, into);
                into.extend(inner);
            }
        }
    }
}

/// A message anywhere in the tree, chosen at random.
fn somewhere<'t>(fields: &'t mut Vec<Field>, random: &mut Random) -> &'t mut Vec<Field> {
    let inner: Vec<usize> = (0..fields.len())
        .filter(|at| matches!(&fields[*at].value, Value::Message(inner) if !inner.is_empty()))
        .collect();
    if inner.is_empty() || random.below(4) == 0 {
        return fields;
    }
    let at = inner[random.below(inner.len())];
    match &mut fields[at].value {
        Value::Message(inner) => somewhere(inner, random),
        _ => unreachable!("chosen among messages"),
    }
}

fn change(value: &mut Value, random: &mut Random) {
    match value {
        Value::Varint(number) => {
            *number = match random.below(3) {
                0 => random.edge(),
                1 => number.wrapping_add(random.next() % 5).wrapping_sub(2),
                _ => random.next() % 64,
            };
        }
        Value::Fixed64(bytes) => bytes[random.below(8)] = random.byte(),
        Value::Fixed32(bytes) => {
            let special = [f32::NAN, f32::INFINITY, 0.0, -0.0, f32::MIN_POSITIVE, f32::MAX, 1e-42];
            *bytes = special[random.below(special.len())].to_le_bytes();
        }
        Value::Bytes(bytes) => match random.below(4) {
            0 => bytes.clear(),
            1 => bytes.truncate(random.below(bytes.len())),
            2 => bytes.push(random.byte()),
            _ if bytes.is_empty() => {}
            _ => {
                let at = random.below(bytes.len());
                bytes[at] = random.byte();
            }
        },
        Value::Message(fields) if fields.is_empty() => {}
        Value::Message(fields) => {
            let at = random.below(fields.len());
            change(&mut fields[at].value, random);
        }
    }
}

fn mutate_once(fields: &mut Vec<Field>, other: &[Field], random: &mut Random) {
    let target = somewhere(fields, random);
    if target.is_empty() {
        return;
    }
    let at = random.below(target.len());
    match random.below(9) {
        0 => drop(target.remove(at)),
        1 => target.push(target[at].clone()),
        2 => {
            let with = random.below(target.len());
            target.swap(at, with);
        }
        // A field of another message takes its place: a name of another value, another operator.
        3 | 4 => {
            let mut donor = other.to_vec();
            let from = somewhere(&mut donor, random);
            let same: Vec<usize> =
                (0..from.len()).filter(|place| from[*place].number == target[at].number).collect();
            if let Some(place) = same.get(random.below(same.len())) {
                target[at] = from[*place].clone();
            }
        }
        5 => target[at].number = 1 + random.next() % 20,
        _ => change(&mut target[at].value, random),
    }
}

/// A model like `seed` with some of its fields changed, or replaced by those of `other`.
pub(crate) fn mutated(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(seed.len() + 64);
    match (parse(seed, DEEPEST), parse(other, DEEPEST)) {
        (Some(mut fields), Some(other)) if random.below(20) > 0 => {
            for _ in 0..=random.below(4) {
                // Its own fields fit more often than those of another model.
                let own = fields.clone();
                let donor = if random.below(3) == 0 { &other } else { &own };
                mutate_once(&mut fields, donor, random);
            }
            written(&fields, &mut bytes);
        }
        _ => {
            bytes.extend(seed);
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.byte();
                }
            }
        }
    }
    bytes
}

/// Puts other places and lengths into the external data of a model; `None` if it has none.
pub(crate) fn with_other_places(model: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut fields = parse(model, DEEPEST)?;
    let mut places = Vec::new();
    entries(&mut fields, &mut places);
    for _ in 0..=random.below(2) {
        let at = random.below(places.len());
        *places.get_mut(at)?.1 = place(places[at].0, random);
    }
    let mut bytes = Vec::new();
    written(&fields, &mut bytes);
    Some(bytes)
}

/// What an entry of external data says.
#[derive(Clone, Copy)]
enum Says {
    Location,
    Number,
}

/// The entries of external data: what they say, and their bytes.
fn entries<'t>(fields: &'t mut [Field], into: &mut Vec<(Says, &'t mut Vec<u8>)>) {
    let says = match fields.first().map(|field| &field.value) {
        Some(Value::Bytes(key)) if key == b"location" => Some(Says::Location),
        Some(Value::Bytes(key)) if key == b"offset" || key == b"length" => Some(Says::Number),
        _ => None,
    };
    for field in fields {
        match (&mut field.value, says) {
            (Value::Bytes(bytes), Some(says)) if field.number == 2 => into.push((says, bytes)),
            (Value::Message(inner), _) => entries(inner, into),
            _ => {}
        }
    }
}

fn place(says: Says, random: &mut Random) -> Vec<u8> {
    let locations = [
        "..",
        ".",
        "",
        "/etc/hostname",
        "../a",
        "a/../../b",
        "m.data",
        "./m.data",
        "folder",
        "link",
        "m.data/",
        "a\0b",
        "m.onnx",
        "\u{e9}",
    ];
    match says {
        Says::Location => random.of_all(&locations).as_bytes().to_vec(),
        Says::Number => match random.below(4) {
            0 => random.edge().to_string(),
            1 => (random.next() % 5000).to_string(),
            2 => format!("-{}", random.next() % 9),
            _ => (*random.of_all(&["", "x", "1e3", " 4", "+4", "0x4", "4096"])).to_owned(),
        }
        .into_bytes(),
    }
}
