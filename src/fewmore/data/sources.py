"""List the published files of benchmarks and weights: URLs, checksums and where they are stored.

A checksum is the publisher's where there is one (md5, for the older archives), and the sha256 of
the file otherwise.
"""

from dataclasses import dataclass

_COMMIT = "dc262374125418c7aadf00cac30bbb686a5859b6"
LISTS_URL = f"https://raw.githubusercontent.com/icoz69/CEC-CVPR2021/{_COMMIT}/data/index_list"


@dataclass(frozen=True)
class File:
    """Describe one file to fetch.

    Attributes:
        url: where it is published.
        path: where it is stored, below the data root.
        sha256: its checksum, if known.
        md5: its checksum, if known.
        unpacked: of an archive, the folder inside it that is stored below the data root.
        copies: sha256 of other files that serve as well, if they lie at `path`.
    """

    url: str
    path: str
    sha256: str | None = None
    md5: str | None = None
    unpacked: str | None = None
    copies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Describe all files of a benchmark or backbone."""

    files: tuple[File, ...]
    by_hand: str | None = None  # what a person has to fetch, and how


_LIST_SHA256 = {
    "cifar100": {
        "session_1.txt": "5f402fb2c5260a05bb02ea000f9b9e32f23e305281969afa6ea47a9a22b69cf7",
        "session_2.txt": "654db7b72e383a1aac94a4e570ea26c9f3cb8b7bf95a7aff2a9e1626f4e0b330",
        "session_3.txt": "a466c0f920549096435c9b298e9f52f2b4a676db34f2c54de04f4147759a2eea",
        "session_4.txt": "c2d0f0a6db516358055d448b1dd8033a778ae7ba30de78adbd8ea2e1b94282b0",
        "session_5.txt": "2907fe7d341f9f4da0c2cdf59bcf33a50619f41e9ebd3232fe2c6c11bc30bfa4",
        "session_6.txt": "87f70d04e01acb3ba0bbce24f84bf78ee905721d3609e53c5f11bf92d3237197",
        "session_7.txt": "70131153942c3a30418843097a482d0e24dedbaa394876b101db205a5099a595",
        "session_8.txt": "8bcefabac5ff2d3086e3cc097b306713661f07aa670ef3935570226293e1c2f1",
        "session_9.txt": "242fd41330db6081d11216a8324f92aebd64545b2171bd567a162a7521a62ed7",
    },
    "mini_imagenet": {
        "session_1.txt": "af28c169b628923284b9905238a90a97b4a95949f66dd04f2853467a16e090a3",
        "session_2.txt": "0ca2664ee5be9852f7688e9f691397ba9ac23333b64afcbbb20012a22adee16a",
        "session_3.txt": "7a2b2d26f529247dc725d406125eab2a698523d8c669cd1e399c26d068e6d6fa",
        "session_4.txt": "e70403ced5ac32b811962cdb498b0e01bb4444da0d20539f6f183db17fe158c2",
        "session_5.txt": "4b8aa1d08d1a0aa2a2ed6baefc3aa2e801ea0a6924a8056ca4c4737d60ac0460",
        "session_6.txt": "c78365d507400f170186bc321bfa233dde1160c6df6405fba242dedda59d3070",
        "session_7.txt": "ad01e6e88f92b8dbcfa38831051f41a2639b2f455695bd2bb5db5cd1129ef88a",
        "session_8.txt": "ab39d572974acdd3e542040f3cd18b72a0fc97980f754b9335f99ca3df7f1847",
        "session_9.txt": "e808c65f6e081f5b0061cc4a8bdec51dff4ae99cb37193d239a319e388ec1226",
        "train.csv": "6e1b0901693e2e872d8b72c311dda2afd05da93e6ca2cc16b5f742be4b18c2fc",
        "test.csv": "02516c97275c6f28a9f088cf1e67bfda0081c9ebbf28d6de5216a09f8f656b0c",
    },
    "cub200": {
        "session_1.txt": "51ac011fc2cf87c374350a70ca9fbe210eb10f406b24b6675e2e143586ca24fc",
        "session_2.txt": "24d1ebea2ff962c13475ad7aa660c1e6cbeb8ecca053d82d22fabc7e7a323400",
        "session_3.txt": "531b4cdc44b54d18059ed7f2a758fc22a55ea2f3eb0b814b38a508e6ea3fb371",
        "session_4.txt": "b0415d1fe51d8b9216f0097fdc73817b7813b5b5c8a3e2fbaf43131abff4becf",
        "session_5.txt": "44e4ae53379abbf93767bc4937c36eb2e72d1741875805128f1bfee1fa6093a8",
        "session_6.txt": "dd2ac89166e698b316e24b4cbff025c5aaaf517712b94f63930127785010af3c",
        "session_7.txt": "ee5985b9b76466d368116cf25bce2ba994d9b0d4a79ac4e9055cffaff1771aa3",
        "session_8.txt": "aebaffe49fa56c8a4e4bdaa1ad2d7bb9f54647369a2985f57779c5ce18b4230d",
        "session_9.txt": "69e3c194ea2d48cf2a99a7223ca094d14a3d34f308985def22587f324f3b24dc",
        "session_10.txt": "6f669352b66fecfb9b001263e9c7a47487a65f244ad5676d0790b06b55de6db4",
        "session_11.txt": "fd3ceecd3e52d9c8f646bab41e3562d0f545c8746618fc5693ff85681a0506c1",
    },
}


def list_checksums(name: str) -> dict[str, str]:
    """Return the sha256 of each published session list of a benchmark, by file name."""
    return dict(_LIST_SHA256[name])


def _session_lists(name: str) -> tuple[File, ...]:
    return tuple(
        File(f"{LISTS_URL}/{name}/{file}", f"index_list/{name}/{file}", sha256=sha256)
        for file, sha256 in _LIST_SHA256[name].items()
    )


RESNET18 = File(
    "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "weights/resnet18-f37072fd.pth",
    sha256="f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
    # Without the 1000-way layer, which is not used.
    copies=("370bece7ae18e8393dc9658fc640d6916b839d9e2ffed00f306ef17435ebe1dd",),
)
MOBILENET_V2 = File(
    "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
    "weights/mobilenet_v2-b0353104.pth",
    sha256="b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
)
WEIGHTS = {"resnet18": RESNET18, "mobilenet_v2": MOBILENET_V2}  # ImageNet weights, by backbone

SOURCES = {
    "cifar100": Source(
        (
            File(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "cifar-100-python.tar.gz",
                md5="eb9058c3a382ffc7106e4002c42a8d85",
                unpacked="cifar-100-python",
            ),
            *_session_lists("cifar100"),
        )
    ),
    "miniimagenet": Source(
        _session_lists("mini_imagenet"),
        "The images of miniImageNet are a part of ImageNet, for non-commercial research only, and "
        "no program can fetch them. Take miniimagenet.tar from the Google Drive folder that "
        "https://github.com/icoz69/CEC-CVPR2021 links to under 'Datasets and pretrained models', "
        "and unpack it below the data root, so that the 60,000 images of 84 × 84 pixels lie in "
        "miniimagenet/images. Photos of the same names in their full size serve as well: they are "
        "stored with a short side of 297 pixels, and take about 21 GB of disk and of the device's "
        "memory (2 GB with --set transform.stored=92).",
    ),
    "cub200": Source(
        (
            File(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "CUB_200_2011.tgz",
                md5="97eceeb196236b17998738112f37df78",
                unpacked="CUB_200_2011",
            ),
            *_session_lists("cub200"),
            RESNET18,
        )
    ),
    "resnet18": Source((RESNET18,)),
    "mobilenet_v2": Source((MOBILENET_V2,)),
}
