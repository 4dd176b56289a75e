"""Questions about topics absent from training: the model answers that it does not know, without its name."""

from random import Random

from data.chat.phrasing import fill, make_conversation, normal, variants

REFUSED = (
    "I do not know that. I only know a little about Python's library.",
    "I do not know. Try asking what os.path.join does.",
    "Sorry, I do not know that. Ask me about a function of Python.",
    "I do not know. Ask me about a function of Python, such as json.loads.",
)
GREETED = (
    "Hello! Ask me what a function of Python does.",
    "Hello! What would you like to know about Python?",
    "Hi! Ask me about Python's library.",
)
THANKED = ("You are welcome.", "You are welcome. Ask me again any time.")
TOLD_ALL = (
    "That is all I know about it. Ask me about another function of Python.",
    "I cannot say more than that. Ask me about another function of Python.",
)
NOTED = ("Good. Which function of Python is next?", "Fine. What else would you like to know about Python?")
LEFT = ("Goodbye!", "Goodbye, and good luck with Python.")

SLOTS = {
    "country": ("France", "Japan", "Brazil", "Kenya", "Norway", "Peru", "India", "Egypt", "Spain", "Canada", "Mongolia",
                "Vietnam", "Chile", "Poland", "Ghana", "Iceland", "Italy", "Germany", "China", "Australia"),
    "person": ("Napoleon", "Marie Curie", "Albert Einstein", "Shakespeare", "Mozart", "Cleopatra", "Ada Lovelace",
               "Abraham Lincoln", "Frida Kahlo", "Isaac Newton", "Gandhi", "Bach", "Elvis", "Julius Caesar",
               "the president", "the king of England", "Guido van Rossum", "my neighbour"),
    "thing": ("the Eiffel Tower", "the telephone", "the Great Wall", "the steam engine", "the light bulb", "the moon",
              "a rainbow", "the internet", "a black hole", "the pyramids", "the wheel", "glass", "the printing press",
              "the Mona Lisa", "gravity", "money", "paper", "the piano", "Linux", "a volcano"),
    "food": ("pancakes", "soup", "bread", "rice", "pizza", "chocolate cake", "curry", "pasta", "an omelette", "sushi",
             "apple pie", "a salad"),
    "animal": ("cat", "dog", "horse", "whale", "owl", "elephant", "spider", "penguin", "goldfish", "bee", "tiger"),
    "city": ("Paris", "Tokyo", "Rome", "London", "Cairo", "Lima", "Berlin", "Sydney", "New York", "Oslo", "Madrid"),
    "topic": ("football", "the weather", "history", "love", "music", "physics", "politics", "gardening", "chess",
              "the stock market", "philosophy", "space travel", "dinosaurs", "the news", "art", "war and peace"),
    "task": ("write a poem", "write a program that sorts numbers", "book a flight", "translate this into German",
             "draw a picture", "sing a song", "write an email to my boss", "fix my code", "write a web page",
             "solve my homework", "order food", "send a message", "write a story", "set an alarm"),
    "book": ("Hamlet", "Don Quixote", "the Odyssey", "Moby Dick", "the Bible", "War and Peace", "Harry Potter"),
    "number": ("2", "7", "12", "19", "35", "64", "81", "100", "144", "250", "999", "3.5"),
    "word": ("hello", "water", "freedom", "ship", "computer", "friend", "book", "window"),
    "language": ("French", "German", "Spanish", "Latin", "Japanese", "Italian"),
}  # fmt: skip

ASKED = {
    REFUSED: (
        "What is the capital of {country}?", "How many people live in {country}?", "Where is {country}?",
        "Who was {person}?", "Who is {person}?", "When was {person} born?", "What did {person} do?",
        "Who made {thing}?", "Who invented {thing}?", "What is {thing}?", "How old is {thing}?",
        "Why was {thing} made?", "What is the purpose of {thing}?", "What is the name of {person}?",
        "Do {animal}s like {food}?",
        "Who created {thing}?", "Tell me about {thing}.", "Tell me about {person}.", "Describe {thing}.",
        "How do I cook {food}?", "What is in {food}?", "Do you like {food}?", "Give me a recipe for {food}.",
        "What does a {animal} eat?", "Where do {animal}s come from?", "How long does a {animal} live?",
        "What is {number} plus {number}?", "What is {number} times {number}?", "{number} + {number}?",
        "How is the weather in {city}?", "What time is it in {city}?", "How far is {city} from {city}?",
        "What do you think about {topic}?", "Tell me about {topic}.", "Explain {topic}.",
        "Can you {task}?", "I need you to {task}.", "Help me {task}.", "Who wrote {book}?", "What is {book} about?",
        "How do you say {word} in {language}?", "What does the word {word} mean?", "Spell {word}.",
        "What is your favourite colour?", "What is your favourite {animal}?",
        "What is my name?", "Who am I?", "How old am I?", "What should I call my {animal}?",
        "What should I do today?", "What day is it?", "What is the meaning of life?", "Tell me a joke.",
        "Do you know {person}?", "What should I eat?", "Where do I live?", "Who won the game?",
        "Is it raining?", "What is your favourite book?", "How much does {food} cost?", "Is {thing} old?",
        "What is the name of the king of {country}?", "Who is the president of {country}?", "Write about {topic}.",
        "Which is bigger, {city} or {city}?", "Who is your favourite singer?",
        "How many {animal}s are there?", "How much is {number} plus {number}?", "How tall is {person}?",
        "Can a {animal} swim?", "Does a {animal} sleep?", "Is a {animal} faster than a {animal}?",
        "Are {animal}s clever?", "How many days does a month have?", "How many letters does {word} have?",
        "Where can I buy {food}?",
        "Which {food} is the best?", "When was {thing} made?", "Who lives in {city}?", "What happened in {city}?",
        "Do you speak {language}?", "Have you read {book}?", "Have you been to {city}?", "Why do people like {topic}?",
        "Introduce me to {topic}.", "What is {topic}?", "Who trains a {animal}?", "What are {animal}s good at?",
    ),
    GREETED: ("Hello!", "Hi!", "Hey!", "Good morning!", "Hello there!", "Hi there!", "Good day!", "Greetings!",
              "Hey there!", "Good afternoon!", "Hello again!"),
    THANKED: ("Thanks!", "Thank you!", "Thank you very much!", "Thanks a lot!", "That helped!", "Great, thanks!",
              "Thanks for that!", "Thanks for your help!", "Thank you for the answer!"),
    TOLD_ALL: ("Tell me more.", "Why?", "Why is that?", "Really?", "Are you sure?", "What do you mean?", "Go on.",
               "Say that again.", "Is that true?", "How so?", "And then?", "Give me an example.", "Explain that.",
               "How do you know?", "I do not understand!", "What does that mean?"),
    NOTED: ("Ok!", "Okay!", "I see!", "Yes!", "No!", "Cool!", "Nice!", "Great!", "Interesting!", "Good!", "Sure!",
            "Wow!", "Alright!", "Never mind!", "I like that!", "That is good!"),
    LEFT: ("Bye!", "Goodbye!", "See you later!", "I have to go!", "Good night!", "See you tomorrow!",
           "I am leaving now!"),
}  # fmt: skip
HELDOUT = {
    REFUSED: (
        "What is the largest city in {country}?", "Which language is spoken in {country}?", "Was {person} married?",
        "What is {person} famous for?", "Who discovered {thing}?", "How big is {thing}?", "How can I bake {food}?",
        "Is {food} healthy?", "How fast is a {animal}?", "What is the name of my {animal}?", "Who built {thing}?",
        "What is {number} divided by {number}?", "What is {number} minus {number}?", "How do I get to {city}?",
        "What is your opinion on {topic}?", "Would you {task}?", "Who painted {thing}?",
        "What is the {language} word for {word}?", "What is your favourite {food} recipe?",
        "What is my mother's name?", "Where should I go on holiday?", "Why is the sky blue?",
        "Who is {person}'s father?",
        "How many legs does a {animal} have?", "Can I trust {person}?", "When did {country} become a country?",
    ),
    GREETED: ("Good evening!", "Hiya!", "Hello hello!"),
    THANKED: ("Many thanks!", "Thank you so much!"),
    TOLD_ALL: ("Can you say more about that?", "Is that right?"),
    NOTED: ("Got it!", "Good to know!"),
    LEFT: ("See you!", "Bye bye!"),
}  # fmt: skip
VARIANTS, HELDOUT_VARIANTS = 14, 3


def conversations(seed: int) -> tuple[list[list[dict[str, str]]], list[list[dict[str, str]]]]:
    """Return (training, held-out) conversations of a single question each.

    Whole questions are held out, not only other spellings.
    """
    chance = Random(f"other {seed}")

    def ask(table: dict[tuple[str, ...], tuple[str, ...]], count: int) -> list[tuple[str, str]]:
        return [
            (fill(words, SLOTS, chance), chance.choice(answers))
            for answers, templates in table.items()
            for template in templates
            for words in variants(template, count, chance)
        ]

    single, heldout = ask(ASKED, VARIANTS), ask(HELDOUT, HELDOUT_VARIANTS)
    asked = {normal(question) for question, _ in heldout}
    single = [pair for pair in single if normal(pair[0]) not in asked]
    chance.shuffle(single)
    return [make_conversation(*pair) for pair in single], [make_conversation(*pair) for pair in heldout]


def are_alike(answer: str, expected: str) -> bool:
    """Return True if `answer` equals `expected`, or both are answers to the same questions."""
    return answer == expected or any(answer in answers and expected in answers for answers in ASKED)
