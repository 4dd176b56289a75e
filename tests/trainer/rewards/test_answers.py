"""Right and wrong answers to word problems: numbers, fractions, LaTeX, units and lists of values."""

import pytest

from data.problems import published
from data.problems.problem import Problem
from trainer.records.rl_config import RlConfig
from trainer.rewards.math_answers import Math
from trainer.rewards.reward import JudgedAnswer
from trainer.rewards.task_rewards import Gsm8k, judge_of

NUMBERS = (
    ('#### 1,234,567', '<SOLUTION>1,234,567</SOLUTION>', True),
    ('#### 1,000', '<SOLUTION>1000</SOLUTION>', True),
    ('#### 1000', '<SOLUTION>1,000</SOLUTION>', True),
    ('#### 1,234,567', '<SOLUTION>1,234</SOLUTION>', False),
    ('#### 18', '<SOLUTION>18.0</SOLUTION>', True),
    ('#### 18', '<SOLUTION>18.00</SOLUTION>', True),
    ('#### 18', '<SOLUTION>18.5</SOLUTION>', False),
    ('#### 18', '<SOLUTION>18.</SOLUTION>', True),
    ('#### 5', '<SOLUTION>$5</SOLUTION>', True),
    ('#### 5', '<SOLUTION>\\$5.00</SOLUTION>', True),
    ('#### 50', '<SOLUTION>50%</SOLUTION>', True),
    ('#### 50', '<SOLUTION>0.5</SOLUTION>', False),
    ('#### -3', '<SOLUTION>-3</SOLUTION>', True),
    ('#### -3', '<SOLUTION>−3</SOLUTION>', True),
    ('#### 3', '<SOLUTION>-3</SOLUTION>', False),
    ('#### 3', '<SOLUTION>+3</SOLUTION>', True),
    ('#### 8', '<SOLUTION>12 - 4 = 8</SOLUTION>', False),
    ('#### 12', '<SOLUTION>12 - 4 = 8</SOLUTION>', False),
    ('#### 72', '<SOLUTION>72 clips</SOLUTION>', True),
    ('#### 72', '<SOLUTION>seventy-two</SOLUTION>', False),
    ('#### 72', '72', False),
    ('#### 72', '<SOLUTION>71</SOLUTION><SOLUTION>72</SOLUTION>', False),
    ('#### 72', '<SOLUTION></SOLUTION> 72', False),
    ('#### 72', '<solution> 72\n</solution>', True),
    ('#### 72', '<SOLUTION>72', False),
    ('#### 7', '<SOLUTION>007</SOLUTION>', True),
    ('#### 10', '<SOLUTION>1e1</SOLUTION>', False),
    ('#### 2', '<SOLUTION>٢</SOLUTION>', False),
    ('#### 3', '<SOLUTION>1,2,3</SOLUTION>', False),
    ('#### 123', '<SOLUTION>1,23</SOLUTION>', False),
    ('a #### 5 b\n#### 72', '<SOLUTION>72</SOLUTION>', True),
)  # fmt: skip
SIGNS = (
    ('#### 18', '<SOLUTION>minus 18</SOLUTION>', False),
    ('#### 18', '<SOLUTION>It is negative 18</SOLUTION>', False),
    ('#### 18', '<SOLUTION>–18</SOLUTION>', False),
    ('#### 18', '<SOLUTION>sqrt(18)</SOLUTION>', False),
    ('#### 18', '<SOLUTION>log 18</SOLUTION>', False),
    ('#### 18', '<SOLUTION>$18M</SOLUTION>', False),
    ('#### 18', '<SOLUTION>18M</SOLUTION>', False),
    ('#### 18', '<SOLUTION>x minus 18</SOLUTION>', False),
    ('#### 18', '<SOLUTION>basin 18</SOLUTION>', True),
    ('#### 18', '<SOLUTION>18m</SOLUTION>', True),
    ('#### -18', '<SOLUTION>negative 18</SOLUTION>', True),
    ('#### -18', '<SOLUTION>minus $18</SOLUTION>', True),
    ('#### -18', '<SOLUTION>**–18**</SOLUTION>', True),
    ('#### -18', '<SOLUTION>x minus 18</SOLUTION>', False),
    ('#### 1200000', '<SOLUTION>$1.2M</SOLUTION>', True),
    ('#### 1,200,000,000', '<SOLUTION>**€1.2bn**</SOLUTION>', True),
    ('#### 1200', '<SOLUTION>$1.2k</SOLUTION>', True),
    ('#### 18', '<SOLUTION>18 M&Ms</SOLUTION>', True),
    ('#### 18', "<SOLUTION>18 B's</SOLUTION>", True),
    ('#### 18', '<SOLUTION>He has —18 apples</SOLUTION>', True),
    ('#### -18', '<SOLUTION>—18</SOLUTION>', True),
    ('#### -18', '<SOLUTION>**—18**</SOLUTION>', True),
    ('#### -18', '<SOLUTION>He has –18 apples</SOLUTION>', True),
)  # fmt: skip
SPELT = (
    ('2ab', '2', False),
    ('2ab', '2bc', False),
    ('2c', '2d', False),
    (r'\pi r^{2}h', r'\pi r^{2}', False),
    ('3', '3–5', False),
    ('3', r'3\sqrt{2', False),
    ('3', '3 pi', False),
    ('5', '5 and a half', False),
    ('5', '5 squared', False),
    (r'5\text{ cm}', '5m', False),
    (r'5\text{ cm}', '5cm', True),
    ('5', '5cm', True),
    (r'5\text{ m}', '5 m', True),
    (r'5\text{ m}', '5m', True),
    ('5 m', '5 meters', True),
    (r'5\text{ kg}', '5 grams', False),
    (r'5\text{ kg}', '5 kg', True),
    (r'5\text{ kg}', '5kg', True),
    (r'3\text{ weeks}', '3 years', False),
    (r'3:30\text{ p.m.}', '3:30 am', False),
    (r'3:30\text{ p.m.}', '3:30 PM', True),
    (r'3:30\text{ p.m.}', '3:30pm', True),
    (r'3:30\text{ p.m.}', '3:30 p.m.', True),
    (r'3\pi', '3 pi', True),
    (r'3\pi', r'3 \pi', True),
    (r'2\pi r', '2 pi r', True),
    (r'\frac{\pi}{3}', 'pi/3', True),
    ('[0,100]', '[0, 100]', True),
    ('(3,128)', '(3, 128)', True),
    ('(3,128)', '(3.0, 128)', True),
    ('1,2,300', '1, 2, 300', True),
    ('1,2,300', '300, 2, 1', True),
    ('1,2,300', '12300', False),
    ('(3,100)', '3100', False),
    ('3100', '(3,100)', False),
    ('1,200', '1200', True),
    ('1200', '1, 200', False),
    ('2', 'x=1 or x=2', False),
    ('1,2', 'x=1 or x=2', True),
    ('1,2', '1 or 2', True),
    ('1,2', 'x=2, x=1', True),
    ('2,000', 'x = 2,000', True),
    (r'1,000\pi', r'1000\pi', True),
    ('4', r'$\boxed{3}$ or $\boxed{4}$', False),
    ('1,2', r'$\boxed{1}$ and $\boxed{2}$', True),
    ('5', r'\boxed 5', True),
    ('5', r'\fbox{5}', True),
    ('5', r'\boxed {5}', True),
    ('5', r'\boxed{5}, so \boxed{5}', True),
    ('[1000,2000]', '[1,000, 2,000]', True),
    (r'\frac{1,000}{3}', r'\frac{1000}{3}', True),
    ('2m', '2', False),
    ('4s', '4', False),
    ('5', '5th', False),
    ('4', '5 because x=4', False),
    ('5', r'\fbox{6} \boxed{5}', False),
    ('x^4+x^3+x^2+1', 'x^{4}+x^{3}+x^{2}+1', True),
    ('x^4+x^3+x^2+1', '1+x^{2}+x^{3}+x^4', True),
    ('x^4+x^3+x^2+1', 'x^4+x^3+x^2+2', False),
    ('3', r'3\mathrm{i}', False),
    ('5', '5 thirds', False),
    (r'90^\circ', '90 radians', False),
    (r'90^\circ', '90 degrees', True),
    (r'5\text{ ft}', '5 m', False),
    (r'\$5', '5 dollars', True),
    (r'10\sqrt{3}\text{ cm}', r'10\sqrt{3} cm', True),
    (r'2\text{ L}', '2 L', True),
    ('(1,2)', '(2,1)', False),
    ('12,345', '12345', True),
    (r'12\text{ apples}', '12 apples', True),
    (r'12\pi', r'12\pi \text{ inches}', True),
    (r'6\pi', r'6\pi\text{ cm}', True),
    (r'8\pi', r'8\pi \text{ square units}', True),
    (r'8\pi\text{ cm}^2', r'8\pi', True),
    (r'10\pi', r'10\pi cm', True),
    (r'10\pi', r'10\pi\,\text{cm}^2', True),
    (r'9\pi', '9 pi square inches', True),
    (r'9\pi', '9pi feet', True),
    (r'9\pi\text{ m}', r'9\pi m', True),
    (r'9\pi\text{ cm}', r'9\pi\text{ m}', False),
    (r'9\pi', r'9\pi m', False),
    (r'9\pi', r'10\pi\text{ cm}', False),
    (r'9', r'9\pi\text{ cm}', False),
    (r'2\pi', r'2\pi\text{ million}', False),
    (r'2\sqrt{3}', r'2\sqrt{3}\text{ million}', False),
    ('2000000', r'2\text{ million}', True),
    (r'9\pi', '9π cm', True),
    (r'2\pi rh', r'2\pi', False),
    (r'2\pi', r'2\pi hr', False),
    (r'60', r'60^\circ\text{C}', True),
    (r'60^\circ\text{C}', r'60^\circ\text{F}', False),
    (r'60^\circ\text{C}', '60 degrees Celsius', True),
    ('60 degrees Celsius', '60 degrees Fahrenheit', False),
    ('1331', '11^3 = 1,331', True),
    ('1331', '11^3 = 1,332', False),
    ('1260', r'9 \times 140 = 1,260', True),
    ('3628800', '10! = 3,628,800', True),
    ('120', '5! = 120', True),
    ('120', '5! = 121', False),
    ('120', '5 != 120', False),
    ('1331', 'f(3) = 1,331', True),
    ('1260', r'\approx 1,260', True),
    ('(1,331)', '(x=1,331)', False),
    ('1331', '(x=1,331)', False),
    (r'\frac{1200}{7}', r'\frac{1,200}{7}', True),
    (r'\frac{7}{1200}', r'\dfrac{7}{1,200}', True),
    (r'\frac{1,\!200}{\sqrt{7}}', r'\frac{1,200}{\sqrt{7}}', True),
    (r'\sqrt{1234}', r'\sqrt{1,234}', True),
    (r'\frac{4,\!343}{625}', r'\frac{4343}{625}', True),
    (r'\frac{4343}{625}', r'\frac{4,\!343}{625}', True),
    (r'\frac{1200}{7}', r'\frac{1,300}{7}', False),
    ('10,\\!080', '10080', True),
    ('0,100', '0, 100', True),
    ('0,100', '100', False),
    ('100', '0,100', False),
    ('5', r'\boxed{' * 3000 + '5' + '}' * 3000, True),
    ('5', r'\boxed{' * 3000 + '5', True),
    ('5', r'\boxed{' * 3000 + '6' + '}' * 3000, False),
    ('5', r'\boxed{x = \boxed 5}', True),
    ('5', r'\boxed{\fbox{4} \boxed{5}}', False),
)  # fmt: skip
LATEX = (
    ('so $\\boxed{\\frac{1}{2}}$', '<SOLUTION>\\frac{1}{2}</SOLUTION>', True),
    ('$\\boxed{\\frac{1}{2}}$', '<SOLUTION>1/2</SOLUTION>', True),
    ('$\\boxed{\\frac{1}{2}}$', '<SOLUTION>0.5</SOLUTION>', True),
    ('$\\boxed{\\frac{1}{2}}$', '<SOLUTION>\\dfrac12</SOLUTION>', True),
    ('$\\boxed{\\frac{1}{3}}$', '<SOLUTION>0.333</SOLUTION>', False),
    ('$\\boxed{\\frac{1}{2}}$', '<SOLUTION>2/4</SOLUTION>', True),
    ('$\\boxed{1}$ no: $\\boxed{2}$', '<SOLUTION>2</SOLUTION>', True),
    ('$\\boxed{x^2+1}$', '<SOLUTION>1+x^2</SOLUTION>', True),
    ('$\\boxed{(1,2)}$', '<SOLUTION>(1, 2)</SOLUTION>', True),
    ('$\\boxed{(1,2)}$', '<SOLUTION>(2,1)</SOLUTION>', False),
    ('$\\boxed{1,000}$', '<SOLUTION>1000</SOLUTION>', True),
    ('$\\boxed{10\\%}$', '<SOLUTION>10</SOLUTION>', True),
    ('$\\boxed{90^\\circ}$', '<SOLUTION>90</SOLUTION>', True),
    ('$\\boxed{\\text{(A)}}$', '<SOLUTION>A</SOLUTION>', True),
    ('$\\boxed{2\\sqrt{3}}$', '<SOLUTION>\\sqrt{12}</SOLUTION>', True),
    ('$\\boxed{X}$', '<SOLUTION>x</SOLUTION>', False),
    ('$\\boxed{5}$', '<SOLUTION>\\boxed{5}</SOLUTION>', True),
    ('$\\boxed{\\frac{1}{3}}$', '<SOLUTION>0.3333333333</SOLUTION>', False),
    ('$\\boxed{\\sqrt{2}}$', '<SOLUTION>1.41421356</SOLUTION>', False),
    ('$\\boxed{2\\pi}$', '<SOLUTION>6.283185307</SOLUTION>', False),
    ('$\\boxed{\\sqrt{6.25}}$', '<SOLUTION>2.5</SOLUTION>', True),
    ('$\\boxed{\\emptyset}$', '<SOLUTION>\\varnothing</SOLUTION>', True),
    ('$\\boxed{\\emptyset}$', '<SOLUTION>0</SOLUTION>', False),
    ('$\\boxed{2\\phi}$', '<SOLUTION>2\\varphi</SOLUTION>', True),
    ('$\\boxed{0.\\overline{3}}$', '<SOLUTION>\\frac13</SOLUTION>', True),
    ('$\\boxed{-\\frac{7}{6}}$', '<SOLUTION>-1.1\\bar{6}</SOLUTION>', True),
    ('$\\boxed{0.\\overline{3}}$', '<SOLUTION>0.3</SOLUTION>', False),
    ('$\\boxed{0.1\\overline{6}}$', '<SOLUTION>0.\\overline{16}</SOLUTION>', False),
    ('$\\boxed{-1}$', '<SOLUTION>e^{i\\pi}</SOLUTION>', True),
    ('$\\boxed{\\mathbb{R}}$', '<SOLUTION>\\mathbf{R}</SOLUTION>', True),
    ('$\\boxed{(1,2)}$', '<SOLUTION>1,2</SOLUTION>', False),
    ('$\\boxed{12}$', '<SOLUTION>12 dozen</SOLUTION>', False),
    ('$\\boxed{1\\frac{1}{2}}$', '<SOLUTION>1 1/2</SOLUTION>', True),
    *((f'$\\boxed{{{gold}}}$', f'<SOLUTION>{answer}</SOLUTION>', is_right) for gold, answer, is_right in SPELT),
    ('$\\boxed{1}$ and $\\boxed{2}$', '<SOLUTION>2, 1</SOLUTION>', True),
    ('so \\fbox{5}', '<SOLUTION>5</SOLUTION>', True),
    ('so $\\boxed 12$.', '<SOLUTION>12</SOLUTION>', True),
    ('so $\\boxed {5}$', '<SOLUTION>5</SOLUTION>', True),
    ('$\\boxed{5}$', "<SOLUTION>__import__('os').system('touch pwned')</SOLUTION>", False),
    ('$\\boxed{5}$', '<SOLUTION>9**9**9**9</SOLUTION>', False),
)  # fmt: skip


def tagged(gold: str, text: str) -> JudgedAnswer:
    return JudgedAnswer(Problem(question="", answer=gold), text, True)


def test_number_is_right_when_it_is_the_only_number_and_equal():
    found = [(gold, text, Gsm8k()([tagged(gold, text)])[0].is_right) for gold, text, _ in NUMBERS + SIGNS]
    assert found == list(NUMBERS + SIGNS)


def test_grail_decides_ten_cases_differently_and_rewards_the_end_of_untagged_text():
    judge = judge_of("gsm8k", RlConfig(grail_compat=True))
    found = [judge([tagged(gold, text)])[0].is_right for gold, text, _ in NUMBERS]
    assert {row for row, one in enumerate(NUMBERS) if found[row] != one[2]} == {0, 1, 4, 5, 9, 13, 15, 17, 25, 29}
    judged = judge([tagged("#### 72", one) for one in ("", "<SOLUTION>72</SOLUTION>")])
    assert [round(one.total, 2) for one in judged] == [0.05, 0.9]


def test_format_reward_requires_the_answer_tags():
    whole = "<start_working_out>6 * 12</end_working_out><SOLUTION>72</SOLUTION>"
    empty = "<start_working_out> \n</end_working_out><SOLUTION>72</SOLUTION>"
    texts = (whole, whole + " ok", "", "72", "<SOLUTION>x</SOLUTION>", empty)
    judged = Gsm8k()([tagged("#### 72", one) for one in texts])
    assert [round(one.total, 2) for one in judged] == [1.0, 0.8, 0.0, 0.0, 0.15, 0.9]


def test_demonstration_of_gsm8k_earns_the_whole_reward_without_the_marks_of_a_calculator():
    problem = published.gsm8k(
        {"question": "q", "answer": "48/2 = <<48/2=24>>24, so <<24+1000=1024>>1,024.\n#### 1,024"}
    )
    ((*_, answer),) = published.demonstrations("gsm8k", [problem])
    assert "24, so 1,024.</end_working_out>" in answer["content"]
    assert Gsm8k()([JudgedAnswer(problem, answer["content"], True)])[0].total == pytest.approx(1.0)


@pytest.mark.process
def test_latex_is_right_when_its_value_is_equal():
    judge = Math(limit_s=60.0)
    try:
        assert [(gold, text, judge([tagged(gold, text)])[0].is_right) for gold, text, _ in LATEX] == list(LATEX)
    finally:
        judge.close()
