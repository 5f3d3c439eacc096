//! The certificate the webhook server shows: an authority of our own signs it, once. The authority's key is thrown away, so
//! whoever trusts the authority trusts this one certificate and no other.
//!
//! X.509 as far as that takes: names, times, what a key may be used for. `ring` makes the keys and signs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

/// How long a certificate is good for.
const VALID: SignedDuration = SignedDuration::from_hours(24 * 365);
/// How far clocks may be behind ours.
const EARLIER: SignedDuration = SignedDuration::from_hours(1);

const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const SERVER_AUTHENTICATION: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const DNS_NAME: u8 = 0x82;
const KEY_ID: u8 = 0x80;
/// Explicit tags of a certificate's version and extensions.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

/// What was made, each in PEM. It holds a key, so it cannot be printed.
pub(crate) struct Certificates {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A key of its own, a certificate for it that is good for a server of this name, and the authority that signed it.
///
/// # Errors
///
/// If the system has no randomness to give.
pub(crate) fn make(server: &str, now: Timestamp) -> Result<Certificates, ring::error::Unspecified> {
    let chance = SystemRandom::new();
    let (authority_key, _) = key(&chance)?;
    let (server_key, document) = key(&chance)?;
    // Of its own name each time, so that two of them are told apart.
    let issuer = name(&format!("karpenter webhook authority {now}"));
    let not_before = now.checked_sub(EARLIER).unwrap_or(now);
    let not_after = now.checked_add(VALID).unwrap_or(Timestamp::MAX);
    let validity = sequence(&[&time(not_before), &time(not_after)]);
    let of = |subject: &[u8], key: &EcdsaKeyPair, extensions: &[Vec<u8>]| {
        let body = to_be_signed(&issuer, &validity, subject, key, &extensions.concat());
        signed(&body, &authority_key, &chance)
    };
    let authority = of(
        &issuer,
        &authority_key,
        &[
            extension(BASIC_CONSTRAINTS, true, &sequence(&[&element(BOOLEAN, &[0xff])])),
            // keyCertSign
            extension(KEY_USAGE, true, &element(BIT_STRING, &[2, 0x04])),
            extension(SUBJECT_KEY_ID, false, &element(OCTET_STRING, &key_id(&authority_key))),
        ],
    )?;
    let certificate = of(
        &name("karpenter webhook"),
        &server_key,
        &[
            // digitalSignature
            extension(KEY_USAGE, true, &element(BIT_STRING, &[7, 0x80])),
            extension(EXTENDED_KEY_USAGE, false, &sequence(&[&element(OID, SERVER_AUTHENTICATION)])),
            extension(AUTHORITY_KEY_ID, false, &sequence(&[&element(KEY_ID, &key_id(&authority_key))])),
            extension(SUBJECT_ALTERNATIVE_NAME, false, &sequence(&[&element(DNS_NAME, server.as_bytes())])),
        ],
    )?;
    Ok(Certificates {
        authority: pem("CERTIFICATE", &authority),
        certificate: pem("CERTIFICATE", &certificate),
        key: pem("PRIVATE KEY", &document),
    })
}

/// A new key, and the document it is kept as.
fn key(chance: &SystemRandom) -> Result<(EcdsaKeyPair, Vec<u8>), ring::error::Unspecified> {
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, chance)?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_ref(), chance)
        .map_err(|_| ring::error::Unspecified)?;
    Ok((key, document.as_ref().to_vec()))
}

fn key_id(key: &EcdsaKeyPair) -> Vec<u8> {
    digest(&SHA256, key.public_key().as_ref()).as_ref()[..20].to_vec()
}

fn to_be_signed(
    issuer: &[u8],
    validity: &[u8],
    subject: &[u8],
    key: &EcdsaKeyPair,
    extensions: &[u8],
) -> Vec<u8> {
    // Unique as the key is; the first byte makes it positive and as long as it looks.
    let mut serial = key_id(key)[..16].to_vec();
    serial[0] = (serial[0] & 0x7f) | 0x40;
    let public = [&[0], key.public_key().as_ref()].concat();
    sequence(&[
        &element(VERSION, &element(INTEGER, &[2])),
        &element(INTEGER, &serial),
        &algorithm(),
        issuer,
        validity,
        subject,
        &sequence(&[
            &sequence(&[&element(OID, EC_PUBLIC_KEY), &element(OID, P256)]),
            &element(BIT_STRING, &public),
        ]),
        &element(EXTENSIONS, &element(SEQUENCE, extensions)),
    ])
}

fn signed(
    body: &[u8],
    by: &EcdsaKeyPair,
    chance: &SystemRandom,
) -> Result<Vec<u8>, ring::error::Unspecified> {
    let signature = by.sign(chance, body)?;
    let signature = [&[0], signature.as_ref()].concat();
    Ok(sequence(&[body, &algorithm(), &element(BIT_STRING, &signature)]))
}

fn algorithm() -> Vec<u8> {
    sequence(&[&element(OID, ECDSA_WITH_SHA256)])
}

fn name(common: &str) -> Vec<u8> {
    let attribute = sequence(&[&element(OID, COMMON_NAME), &element(UTF8_STRING, common.as_bytes())]);
    sequence(&[&element(SET, &attribute)])
}

/// Certificates write years of this half of the century with two digits, and must.
fn time(at: Timestamp) -> Vec<u8> {
    let year = at.strftime("%Y").to_string();
    if year.as_str() < "2050" {
        element(UTC_TIME, at.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        element(GENERALIZED_TIME, at.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if critical { element(BOOLEAN, &[0xff]) } else { Vec::new() };
    sequence(&[&element(OID, id), &critical, &element(OCTET_STRING, value)])
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, &parts.concat())
}

/// Tag, length and content: lengths below 128 are one byte, others say how many bytes they take.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut out = vec![tag];
    match length {
        [] => out.push(0),
        [short @ 0..=0x7f] => out.push(*short),
        long => {
            out.push(0x80 | u8::try_from(long.len()).unwrap_or(u8::MAX));
            out.extend_from_slice(long);
        }
    }
    out.extend_from_slice(content);
    out
}

fn pem(label: &str, document: &[u8]) -> String {
    let text = STANDARD.encode(document);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_times_are_written_as_others_read_them() {
        assert_eq!(element(SET, &[]), [SET, 0]);
        assert_eq!(element(SET, &[7; 127])[..2], [SET, 127]);
        assert_eq!(element(SET, &[7; 128])[..3], [SET, 0x81, 128]);
        assert_eq!(element(SET, &[7; 300])[..4], [SET, 0x82, 1, 44]);
        assert_eq!(&time("2026-11-15T08:00:01Z".parse().unwrap())[2..], b"261115080001Z");
        assert_eq!(&time("2050-01-01T00:00:00Z".parse().unwrap())[2..], b"20500101000000Z");
    }
}
