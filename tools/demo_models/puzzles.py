"""Puzzles whose answers can be checked, made in bulk on any device. A prompt fills whole blocks of 16 characters, or is a
shorter one of the same form.

  add: 123 + 456 =                  0579               four digits
  sort: 38172645 =                  12345678           digits may repeat
  rev:qwertyuiopas                  sapoiuytrewq
  sudoku 4x4: 1.3. .2.. ...4 3..1=  1234432121433412   rows, columns and quarters hold 1 to 4; one solution
"""
import functools
import itertools

import torch

LENGTH = 64  # of a sequence: prompt, answer, END
TASKS = {"add": (16, 4), "sort": (16, 8), "reverse": (16, 12), "sudoku": (32, 16)}  # characters of prompt and answer
TEST, VALIDATION, PARTS = 0, 1, 64  # a prompt's hash modulo PARTS says whose it is; training takes the others
ABSENT = 0  # in the place of a character that a shorter puzzle has not


def constant(text, like):
    return torch.tensor([ord(c) for c in text], device=like.device).expand(like.shape[0], -1)


def digits(value, count):
    return ord("0") + torch.stack([value // 10**k % 10 for k in reversed(range(count))], 1)


def value(chars):
    """Undoes digits(); an absent one is 0."""
    return sum((chars[:, -1 - k] - ord("0")).clamp(min=0) * 10**k for k in range(chars.shape[1]))


def all_of(chars, draw):
    return chars


def first_few(chars, draw):
    """Keeps a random number of leading characters in about half of the rows. ABSENT takes the others' places."""
    width = chars.shape[1]
    count = draw(1, 2 * width, (len(chars), 1))
    return chars.masked_fill(torch.arange(width, device=chars.device) >= count, ABSENT)


def make_add(n, draw, cut):
    a, b = draw(100, 1000, (n,)), draw(100, 1000, (n,))
    a, b = (cut(digits(x, 3).flip(1), draw).flip(1) for x in (a, b))
    prompt = torch.cat([constant("add: ", a), a, constant(" + ", a), b, constant(" =", a)], 1)
    return prompt, digits(value(a) + value(b), 4), torch.ones_like(a[:, 0]).bool()


def make_sort(n, draw, cut):
    x = cut(draw(ord("0"), ord("9") + 1, (n, 8)), draw)
    return torch.cat([constant("sort: ", x), x, constant(" =", x)], 1), x.sort(1).values, torch.ones_like(x[:, 0]).bool()


def make_reverse(n, draw, cut):
    x = cut(draw(ord("a"), ord("z") + 1, (n, 12)), draw)
    return torch.cat([constant("rev:", x), x], 1), x.flip(1), torch.ones_like(x[:, 0]).bool()


@functools.cache
def sudoku_grids(device):
    """All 288 solved grids [288, 16] of digits 1 to 4."""
    rows, grids = list(itertools.permutations((1, 2, 3, 4))), []
    for grid in itertools.product(rows, repeat=4):
        columns = all(len(set(c)) == 4 for c in zip(*grid))
        quarters = all(len({grid[r][c], grid[r][c + 1], grid[r + 1][c], grid[r + 1][c + 1]}) == 4
                       for r in (0, 2) for c in (0, 2))
        if columns and quarters:
            grids.append(sum(grid, ()))
    return torch.tensor(grids, device=device)


def make_sudoku(n, draw, cut):
    """6 to 10 blanks at random; a puzzle with a second solution is not kept."""
    grids = sudoku_grids(draw(0, 1, (1,)).device)
    solution = grids[draw(0, len(grids), (n,))]
    order = draw(0, 1 << 30, (n, 16)).argsort(1).argsort(1)
    blank = order < draw(6, 11, (n, 1))
    fits = ((grids[None] == solution[:, None]) | blank[:, None]).all(-1).sum(1)
    shown = (solution + ord("0")).masked_fill(blank, ord("."))
    parts = [constant("sudoku 4x4: ", shown)]
    for r in range(4):
        parts += [shown[:, 4 * r:4 * r + 4], constant(" " if r < 3 else "=", shown)]
    return torch.cat(parts, 1), solution + ord("0"), fits == 1


MAKERS = {"add": make_add, "sort": make_sort, "reverse": make_reverse, "sudoku": make_sudoku}


def part_of(prompt):
    """64-bit FNV-1a of the characters [n, length], its upper half modulo PARTS: whose the prompt is."""
    h = torch.full_like(prompt[:, 0], -3750763034362895579)  # 0xcbf29ce484222325
    for k in range(prompt.shape[1]):
        h = torch.where(prompt[:, k] == ABSENT, h, (h ^ prompt[:, k]) * 0x100000001b3)
    return (h >> 32 & 0xffffffff) % PARTS


def make(task, n, generator, cut=all_of):
    """n candidates: characters of prompt and answer, and to which part each belongs; -1 is for no part.

    With first_few as `cut` many are shorter, and ABSENT is among their characters; sudokus never are.
    """
    device = generator.device

    def draw(low, high, shape):
        return torch.randint(low, high, shape, generator=generator, device=device)
    prompt, answer, valid = MAKERS[task](n, draw, cut)
    return prompt, answer, part_of(prompt).masked_fill(~valid, -1)


def text(chars):
    return "".join(chr(c) for c in chars.tolist() if c != ABSENT)


def test_items(task, n, part, seed, cut=all_of):
    """The first n different (prompt, answer) strings of a part that are drawn from the seed."""
    generator, found = torch.Generator().manual_seed(seed), {}
    while len(found) < n:
        prompt, answer, owner = make(task, 4096, generator, cut)
        for k in (owner == part).nonzero()[:, 0].tolist():
            found.setdefault(text(prompt[k]), text(answer[k]))
    return list(found.items())[:n]
