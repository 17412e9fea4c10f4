"""NVIDIA's XID errors: what each number means, whose it is, and what the lab does. Pure data.

An XID alone often has several possible causes; NVIDIA's catalogue gives each number the action to take first,
and that action is what decides here:

    restart the application, or ignore (the program's doing)   its owner is told
    the same, where hardware may be the cause                  its owner and the admins are told
    ignore, contact support, or a check by hand                the admins are told
    reset the GPU, restart the machine                         cordoned until that was done
    check the mechanics (power cables)                         cordoned until an admin lets it go

Where the catalogue names a workflow, its end for what NVML tells (the number, no registers) decides: 48 ends
in a reset with or without 63 and 64 beside it; 74 ends in a reset or a restart; the parts of 144 to 150, of
which some want a reset, cannot be told apart by number, so admins are told. A number that is not listed says
nothing that could be relied on: admins are told, and nothing is cordoned by guess. A site overrules each
number with `health.cordon_xids` and `health.ignore_xids`.

Sources, in our own words:
- NVIDIA, "XID Errors", with the Xid Catalog for Ampere and newer GPUs (resolution buckets, immediate action):
  https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
- NVIDIA, "GPU Debug Guidelines", Xid messages: https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
- NVIDIA, "GPU Memory Error Management" (containment, row remapping, recovery action):
  https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

CONTAINED = 94


class Whose(StrEnum):
    """Where the cause of an XID is to be looked for first."""

    PROGRAM = "the program"
    GPU = "the GPU"
    SYSTEM = "the driver or the machine"
    UNCLEAR = "unclear"


class Deed(StrEnum):
    """What the lab does."""

    NOTHING = "nothing"
    OWNER = "owner told"
    ADMINS = "admins told"
    BOTH = "owner and admins told"
    CORDON = "cordoned"
    RESET = "cordoned until reset"

    @property
    def cordons(self) -> bool:
        """Whether the GPU is withheld from new servers."""
        return self in (Deed.CORDON, Deed.RESET)

    @property
    def tells_owner(self) -> bool:
        """Whether whoever has the GPU is told."""
        return self in (Deed.OWNER, Deed.BOTH) or self.cordons

    @property
    def tells_admins(self) -> bool:
        """Whether admins are told."""
        return self in (Deed.ADMINS, Deed.BOTH) or self.cordons


@dataclass(frozen=True, slots=True)
class Xid:
    """One number of the catalogue.

    Attributes:
        number: NVIDIA's number.
        meaning: What happened, in a few words.
        whose: Where to look first.
        deed: What the lab does.
        known: Whether the catalogue lists it.
    """

    number: int
    meaning: str
    whose: Whose
    deed: Deed
    known: bool = True


_P, _G, _S, _U = Whose.PROGRAM, Whose.GPU, Whose.SYSTEM, Whose.UNCLEAR
_TABLE: tuple[tuple[tuple[int, ...], str, Whose, Deed], ...] = (
    ((8,), "the GPU stopped working on a program", _U, Deed.BOTH),
    ((11, 25, 32), "a program's command stream was invalid or damaged", _P, Deed.OWNER),
    ((13,), "a program failed on the GPU, most often by going past the end of an array", _P, Deed.OWNER),
    ((31,), "a program used an address of GPU memory that it does not have", _P, Deed.OWNER),
    ((37,), "the firmware met a request that it does not know", _S, Deed.ADMINS),
    ((38,), "the firmware's watchdog ran out", _S, Deed.ADMINS),
    ((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "a copy engine failed", _U, Deed.BOTH),
    ((43,), "a program ran into an error of its own and was ended; the GPU is well", _P, Deed.OWNER),
    ((44,), "a fault while the GPU changed from one program to another", _U, Deed.BOTH),
    (
        (45,),
        "a program's work was cleared away: it ended, or after an earlier error",
        _P,
        Deed.OWNER,
    ),
    ((46,), "the GPU stopped answering and must be reset", _G, Deed.RESET),
    ((48,), "an uncorrectable memory error", _G, Deed.RESET),
    ((54,), "the GPU's auxiliary power is not connected", _G, Deed.CORDON),
    ((60, 68, 83, 84, 88, 89, *range(96, 99)), "a video engine failed", _U, Deed.BOTH),
    ((62,), "the GPU's power controller halted", _G, Deed.RESET),
    ((63,), "a row of memory was marked for replacement; the next reset replaces it", _G, Deed.ADMINS),
    ((64,), "a row of memory could not be marked for replacement", _G, Deed.RESET),
    ((66, 67), "the driver used a register that it may not use", _S, Deed.ADMINS),
    ((69,), "a program asked for something that the GPU's engine does not know", _P, Deed.OWNER),
    ((74,), "an NVLink connection failed", _G, Deed.RESET),
    ((78,), "a virtual GPU could not be started", _S, Deed.ADMINS),
    ((79,), "the GPU has fallen off the PCIe bus; the machine must be restarted", _G, Deed.RESET),
    ((80,), "damaged data was sent to the GPU", _P, Deed.OWNER),
    ((82, *range(99, 106)), "an image engine failed", _U, Deed.BOTH),
    ((86, 139), "the optical-flow engine failed", _U, Deed.BOTH),
    ((92,), "many memory errors were corrected", _G, Deed.ADMINS),
    ((93,), "the GPU's configuration memory is worn beyond its limit", _G, Deed.ADMINS),
    ((CONTAINED,), "a memory error that was contained to one program; start that again", _G, Deed.BOTH),
    ((95,), "a memory error that was not contained", _G, Deed.RESET),
    ((106, 107), "a test message", _S, Deed.NOTHING),
    ((108, 137), "an access to another GPU's memory over NVLink failed", _U, Deed.BOTH),
    ((109,), "the GPU could not change from one program to another in time", _U, Deed.RESET),
    ((110,), "a fault of the GPU's security engine", _G, Deed.RESET),
    ((119,), "the GPU's system processor (GSP) did not answer the driver in time", _S, Deed.RESET),
    ((120,), "the GPU's system processor (GSP) failed", _S, Deed.RESET),
    ((121,), "an error on the link between GPU and processor was corrected", _G, Deed.ADMINS),
    ((136,), "an NVLink connection could not be trained", _G, Deed.RESET),
    ((140,), "an uncorrectable memory error escaped", _G, Deed.RESET),
    ((141,), "a fault on a fast path of the driver", _S, Deed.ADMINS),
    ((142,), "a video encoder failed", _U, Deed.ADMINS),
    ((143,), "the GPU could not be initialised", _G, Deed.RESET),
    (
        tuple(range(144, 151)),
        "an NVLink error; the kernel log tells whether to reset",
        _G,
        Deed.ADMINS,
    ),
    (
        (151,),
        "keys of confidential computing were not renewed; restart the machine",
        _S,
        Deed.RESET,
    ),
    ((154,), "the driver's advice on recovery changed; `nvidia-smi -q` shows it", _S, Deed.ADMINS),
    ((155,), "an NVLink error that wants a reset", _G, Deed.RESET),
    ((156,), "a part of the GPU is to be retired by a reset", _G, Deed.RESET),
    ((157,), "a part of the GPU could not be retired", _G, Deed.ADMINS),
    ((158,), "the GPU did not answer in time and must be reset", _G, Deed.RESET),
    ((159,), "an access between processor and GPU failed", _U, Deed.ADMINS),
    ((160, 161), "a memory channel was, or could not be, retired", _G, Deed.ADMINS),
    (tuple(range(162, 166)), "power smoothing changed, or is worn", _G, Deed.ADMINS),
    ((166, 170), "an error of NVLink encryption", _G, Deed.ADMINS),
    ((167,), "a fatal time-out on PCIe", _G, Deed.ADMINS),
    ((168,), "the GPU has less memory than before", _G, Deed.ADMINS),
    ((169,), "the GPU's security processor halted", _G, Deed.ADMINS),
    ((171, 172), "details of an uncorrectable memory error", _G, Deed.ADMINS),
)

CATALOGUE: Mapping[int, Xid] = {
    number: Xid(number, meaning, whose, deed)
    for numbers, meaning, whose, deed in _TABLE
    for number in numbers
}


def lookup(number: int, cordon: Iterable[int] = (), ignore: Iterable[int] = ()) -> Xid:
    """Return what an XID means and what is done about it.

    Args:
        number: NVIDIA's number.
        cordon: Numbers that a site wants cordoned, whatever the catalogue says.
        ignore: Numbers that it wants written down and nothing else; they win.
    """
    found = CATALOGUE.get(number) or Xid(
        number, "not in the lab's catalogue; NVIDIA's list tells what it is", _U, Deed.ADMINS, known=False
    )
    if number in tuple(ignore):
        return Xid(number, found.meaning, found.whose, Deed.NOTHING, found.known)
    if number in tuple(cordon) and not found.deed.cordons:
        return Xid(number, found.meaning, found.whose, Deed.CORDON, found.known)
    return found
