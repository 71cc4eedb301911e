//! Mappings whose file may be shortened. Reading such a page raises SIGBUS, which ends the process.
//! A handler puts zeros there instead and notes it, so that the owner of the mapping can return an
//! error. Signals of any other cause go to the handler that was there before.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use memmap2::Mmap;

/// A mapping whose file may be shortened while it is read.
pub(crate) struct Guarded {
    map: Mmap,
    slot: &'static Slot,
}

/// The addresses of a mapping, for the handler, which must not allocate or lock. Slots are never
/// freed, but used again.
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
    next: *const Slot,
}

// SAFETY: `next` is not changed once other threads see the slot, and it points to a slot that is
// never freed; everything else is atomic.
unsafe impl Sync for Slot {}

/// The first slot of the list.
static FIRST: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// What SIGBUS did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

static INSTALLED: OnceLock<()> = OnceLock::new();

static PAGE: AtomicUsize = AtomicUsize::new(0);

impl Guarded {
    pub(crate) fn new(map: Mmap) -> Guarded {
        install();
        let slot = free_slot();
        slot.lost.store(false, Ordering::Relaxed);
        slot.end.store(map.as_ptr() as usize + map.len(), Ordering::Relaxed);
        slot.start.store(map.as_ptr() as usize, Ordering::SeqCst);
        Guarded { map, slot }
    }

    /// Whether a part could not be read, and is zeros now.
    pub(crate) fn is_lost(&self) -> bool {
        self.slot.lost.load(Ordering::SeqCst)
    }
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.slot.start.store(usize::MAX, Ordering::SeqCst);
        self.slot.taken.store(false, Ordering::SeqCst);
    }
}

fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut next = FIRST.load(Ordering::SeqCst).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null, or a slot that is never freed.
        let slot = unsafe { next.as_ref() }?;
        next = slot.next;
        Some(slot)
    })
}

fn free_slot() -> &'static Slot {
    let take = |slot: &&Slot| !slot.taken.swap(true, Ordering::SeqCst);
    if let Some(slot) = slots().find(take) {
        return slot;
    }
    let mut first = FIRST.load(Ordering::SeqCst);
    let slot = Box::into_raw(Box::new(Slot {
        taken: AtomicBool::new(true),
        start: AtomicUsize::new(usize::MAX),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
        next: first,
    }));
    while let Err(other) = FIRST.compare_exchange(first, slot, Ordering::SeqCst, Ordering::SeqCst) {
        first = other;
        // SAFETY: no other thread sees the slot before it is in the list.
        unsafe { (*slot).next = first };
    }
    // SAFETY: it is never freed.
    unsafe { &*slot }
}

/// Installs the handler, once per process.
fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: plain calls of the C library with valid pointers. The handler has the signature
        // that SA_SIGINFO requires.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE);
            PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::SeqCst);
            let mut before: libc::sigaction = mem::zeroed();
            libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before);
            before
        }
    });
    // After `BEFORE` is set, because the handler reads it.
    INSTALLED.get_or_init(|| {
        // SAFETY: as above.
        unsafe {
            let mut ours: libc::sigaction = mem::zeroed();
            let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
            ours.sa_sigaction = handler as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
        }
    });
}

unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid pointer. Positive codes are those of the kernel, for which
    // the address is set.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code > 0 && replaced(address) {
        return;
    }
    // SAFETY: this repeats what the system would have done with the handler that was there before.
    unsafe { pass_on(signal, info, context, code > 0) };
}

/// Puts zeros from the page of `address` to the end of its mapping; `false` if it is in none.
fn replaced(address: usize) -> bool {
    let contains = |slot: &&Slot| {
        (slot.start.load(Ordering::SeqCst)..slot.end.load(Ordering::SeqCst)).contains(&address)
    };
    let Some(slot) = slots().find(contains) else { return false };
    slot.lost.store(true, Ordering::SeqCst);
    let page = address - address % PAGE.load(Ordering::SeqCst);
    let len = slot.end.load(Ordering::SeqCst) - page;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the pages belong to a mapping of ours, which exists, since it is being read.
    let zeros = unsafe { libc::mmap(page as *mut c_void, len, libc::PROT_READ, flags, -1, 0) };
    zeros != libc::MAP_FAILED
}

unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, fault: bool) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the handler was installed with the signature that its flags name.
    unsafe {
        match before.sa_sigaction {
            libc::SIG_IGN if !fault => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // The default ends the process: the access is repeated, or the signal.
                let mut default: libc::sigaction = mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, ptr::null_mut());
                if !fault {
                    libc::raise(signal);
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(c_int) = mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
