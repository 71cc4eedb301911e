//! [`options!`]: declares options, each once, and makes the struct that holds them and the rows of
//! the table.
//!
//! An entry is one of these, after its help as a doc comment:
//!
//! ```text
//! option name: Type = default => { what differs from OptionRow::EMPTY };  // a field and a row
//! row name: Type = default => { … };    // a row alone: the value belongs to another stage
//! field name: Type = default;           // a field alone: a row sets it under another name
//! ```
//!
//! The value of an `option` goes into the field of its name; `, |config, value| …` before the arrow
//! says what else to do with it.

macro_rules! options {
    (
        $(#[doc = $about:literal])*
        pub struct $Struct:ident;
        $($body:tt)*
    ) => {
        $crate::options::declare::options! {
            @next { $(#[doc = $about])* } $Struct {} {} {} $($body)*
        }
    };

    // Only rows, for values that belong to other stages.
    (rows $ROWS:ident from $BASE:ident; $($body:tt)*) => {
        $crate::options::declare::options! { @rows $ROWS $BASE {} $($body)* }
    };
    (@rows $ROWS:ident $BASE:ident { $($row:expr,)* }) => {
        /// The rows of this part of the table.
        pub(crate) const $ROWS: &[$crate::options::OptionRow] = &[$($row),*];
    };
    (
        @rows $ROWS:ident $BASE:ident { $($rows:tt)* }
        $(#[doc = $doc:literal])*
        row $name:ident: $ty:ty = $default:expr => { $($attrs:tt)* };
        $($rest:tt)*
    ) => {
        $crate::options::declare::options! {
            @rows $ROWS $BASE {
                $($rows)*
                $crate::options::OptionRow {
                    name: stringify!($name),
                    kind: <$ty as $crate::options::OptionType>::KIND,
                    default: || {
                        let default: $ty = $default;
                        $crate::options::OptionType::to_json(&default)
                    },
                    help: concat!($($doc, "\n"),*),
                    $($attrs)*
                    ..$BASE
                },
            }
            $($rest)*
        }
    };

    // The end: the struct, its default and its rows.
    (
        @next { $(#[doc = $about:literal])* } $Struct:ident
        { $($field:tt)* } { $($name:ident = $default:expr,)* } { $($row:expr,)* }
    ) => {
        $(#[doc = $about])*
        #[allow(clippy::struct_excessive_bools)] // each is an option of its own
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $Struct { $($field)* }

        impl Default for $Struct {
            fn default() -> $Struct {
                $Struct { $($name: $default),* }
            }
        }

        impl $Struct {
            /// The rows of the options that reach this struct.
            pub(crate) const ROWS: &'static [$crate::options::OptionRow] = &[$($row),*];
        }
    };

    (
        @next $about:tt $Struct:ident { $($field:tt)* } { $($default:tt)* } { $($row:tt)* }
        $(#[doc = $doc:literal])*
        $(#[serde($($serde:tt)*)])?
        option $name:ident: $ty:ty = $value:expr => { $($attrs:tt)* };
        $($rest:tt)*
    ) => {
        $crate::options::declare::options! {
            @next $about $Struct { $($field)* } { $($default)* } { $($row)* }
            $(#[doc = $doc])*
            $(#[serde($($serde)*)])?
            option $name: $ty = $value, |config, value| {
                config.$name = value;
                Ok(())
            } => { $($attrs)* };
            $($rest)*
        }
    };

    (
        @next $about:tt $Struct:ident { $($field:tt)* } { $($default:tt)* } { $($row:tt)* }
        $(#[doc = $doc:literal])*
        $(#[serde($($serde:tt)*)])?
        option $name:ident: $ty:ty = $value:expr, |$config:ident, $given:ident| $set:block
            => { $($attrs:tt)* };
        $($rest:tt)*
    ) => {
        $crate::options::declare::options! {
            @next $about $Struct
            { $($field)* $(#[doc = $doc])* $(#[serde($($serde)*)])? pub $name: $ty, }
            { $($default)* $name = $value, }
            { $($row)* }
            $(#[doc = $doc])*
            row $name: $ty = $value, |$config, $given| $set => { $($attrs)* };
            $($rest)*
        }
    };

    (
        @next $about:tt $Struct:ident { $($field:tt)* } { $($default:tt)* } { $($row:tt)* }
        $(#[doc = $doc:literal])*
        field $name:ident: $ty:ty = $value:expr;
        $($rest:tt)*
    ) => {
        $crate::options::declare::options! {
            @next $about $Struct
            { $($field)* $(#[doc = $doc])* pub $name: $ty, }
            { $($default)* $name = $value, }
            { $($row)* }
            $($rest)*
        }
    };

    (
        @next $about:tt $Struct:ident { $($field:tt)* } { $($default:tt)* } { $($row:tt)* }
        $(#[doc = $doc:literal])*
        row $name:ident: $ty:ty = $value:expr, |$config:ident, $given:ident| $set:block
            => { $($attrs:tt)* };
        $($rest:tt)*
    ) => {
        $crate::options::declare::options! {
            @next $about $Struct { $($field)* } { $($default)* }
            {
                $($row)*
                $crate::options::OptionRow {
                    name: stringify!($name),
                    kind: <$ty as $crate::options::OptionType>::KIND,
                    default: || {
                        let default: $ty = $value;
                        $crate::options::OptionType::to_json(&default)
                    },
                    help: concat!($($doc, "\n"),*),
                    set: Some(|$config, given| {
                        let $given: $ty =
                            $crate::options::OptionType::from_json(stringify!($name), given)?;
                        $set
                    }),
                    $($attrs)*
                    ..$crate::options::OptionRow::EMPTY
                },
            }
            $($rest)*
        }
    };
}

pub(crate) use options;
