// headrace demo: what the bundled models do, without a model or a prompt of one's own.
#pragma once
#include <optional>
#include <string>

#include "commands.h"

namespace headrace::app {

enum class Demo : unsigned char { kStory, kDiffusion, kPuzzle };

// Error kInvalidArgument for a name of none.
Demo demo_of(const std::string& name);

// story: the hybrid writes token by token. diffusion: fairy-diffusion denoises blocks of a story, which a terminal
// shows. puzzle: puzzle-llada solves flags.prompt, or a few puzzles where that is absent. Stories go on behind
// flags.prompt, or behind a first line of their own.
int demo(Demo which, GenerateFlags flags);

}  // namespace headrace::app
