"""Sample texts to evaluate tokenizers, from sources on every machine; equal with the same Python version.

Documents are grouped by kind: prose is Python's help topics, code is the source of Python's library, numbers are
generated, and other scripts are the first article of the Universal Declaration of Human Rights.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

CODE = """
    argparse ast bdb calendar configparser csv dataclasses difflib doctest enum fractions ftplib heapq inspect
    locale mailbox pathlib pdb pickle random shutil smtplib statistics subprocess tarfile textwrap threading typing
    uuid zipfile
"""
NUMBER_LINES = 4000
SCRIPTS = (
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience"
    " et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt und"
    " sollen einander im Geist der Brüderlichkeit begegnen.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y conciencia,"
    " deben comportarse fraternalmente los unos con los otros.",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i"
    " sumieniem i powinni postępować wobec innych w duchu braterstwa.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve birbirlerine karşı"
    " kardeşlik zihniyeti ile hareket etmelidirler.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. Mọi con người đều được tạo hoá ban"
    " cho lý trí và lương tâm và cần phải đối xử với nhau trong tình anh em.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με λογική"
    " και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и должны"
    " поступать в отношении друг друга в духе братства.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا وعليهم أن يعامل بعضهم بعضًا بروح الإخاء.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו"
    " ברוח של אחוה.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है"
    " और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられて"
    "おり、互いに同胞の精神をもって行動しなければならない。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 부여받았으며"
    " 서로 형제애의 정신으로 행동하여야 한다.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
)


def prose() -> Iterator[str]:
    from pydoc_data.topics import topics

    yield from topics.values()


def code() -> Iterator[str]:
    library = Path(random.__file__).parent
    for name in CODE.split():
        path = library / f"{name}.py"
        if path.is_file():  # a module may have become a package
            yield path.read_text(encoding="utf-8")


def numbers() -> Iterator[str]:
    """Yield NUMBER_LINES lines of prices, dates, addresses, sums and tables of figures, the same in every call."""
    chance = random.Random(1337)
    whole = chance.randrange

    def line() -> str:
        first, second = whole(10_000), whole(10_000)
        return chance.choice(
            (
                f"{first} + {second} = {first + second}",
                f"{whole(1900, 2100)}-{whole(1, 13):02d}-{whole(1, 29):02d}T{whole(24):02d}:{whole(60):02d}:00Z",
                f"{whole(256)}.{whole(256)}.{whole(256)}.{whole(256)}",
                f"$ {whole(10**7):,}.{whole(100):02d}",
                f"0x{whole(2**32):08x} {whole(2**32)}",
                "\t".join(f"{chance.gauss(0, 10):.4f}" for _ in range(6)),
            )
        )

    yield from (line() for _ in range(NUMBER_LINES))


def scripts() -> Iterator[str]:
    yield from SCRIPTS


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "prose": prose,
    "code": code,
    "numbers": numbers,
    "other scripts": scripts,
}
