// nvrtc: the text of kernels becomes a library of this machine, by its C++ compiler. The "machine code" says where that library is;
// one that was made of the same text before is used again.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>

#include "standin.h"

using namespace standin;

namespace {

enum { INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
    std::string text, log = {}, image = {};
};

std::string read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Where the stand-in is, and what it was built with.
std::string folder() {
    Dl_info found;
    dladdr((void*)folder, &found);
    std::string path = found.dli_fname;
    return path.substr(0, path.rfind('/'));
}

std::string quoted(const std::string& word) { return "'" + word + "'"; }

// Runs the compiler; what it says goes to `log`.
bool compile(const std::string& arguments, const std::string& log) {
    return system(("c++ -std=c++20 " + arguments + " 2>" + quoted(log)).c_str()) == 0;
}

// Pointers within structures hold addresses of the card.
std::string with_addresses(const std::string& text) {
    static const std::regex member(R"(\n *(const )?(\w+) ?\* (\w+);)");
    std::string result;
    size_t at = 0;
    for (size_t start; (start = text.find("struct ", at)) != std::string::npos;) {
        size_t open = text.find('{', start), end = text.find("};", start);
        if (end == std::string::npos || open > end) break;
        result += text.substr(at, open - at);
        result += std::regex_replace(text.substr(open, end - open), member, "\nstandin::Pointer<$1$2> $3;");
        at = end;
    }
    return result + text.substr(at);
}

// The source of a library with all kernels of preprocessed text.
std::string source(const std::string& text) {
    static const std::regex kernel("extern \"C\" __global__ void (\\w+)");
    std::string all = "#include \"device_code.h\"\n"
        "struct f16;\ninline float load(f16 value);\ninline void store(f16* place, float value);\n" + with_addresses(text) +
        "\ninline float load(f16 value) { return (float)bits_of<_Float16>(value.bits); }\n"
        "inline void store(f16* place, float value) { place->bits = bits_of<unsigned short>((_Float16)value); }\n";
    for (std::sregex_iterator found(text.begin(), text.end(), kernel), end; found != end; ++found) {
        all += "STANDIN_KERNEL(" + (*found)[1].str() + ")\n";
    }
    return all;
}

int build(Program* program, const std::string& library) {
    std::string stem = library + "." + std::to_string(getpid());
    std::string given = stem + ".given.cpp", expanded = stem + ".expanded", written = stem + ".cpp", log = stem + ".log";
    write(given, program->text);
    bool made = compile("-E -P " + quoted(given) + " -o " + quoted(expanded), log);
    if (made) {
        write(written, source(read(expanded)));
        std::string flags = "-O2 -march=native -shared -fPIC -w -I" + quoted(folder()) + " ";
        made = compile(flags + quoted(written) + " -o " + quoted(stem), log);
    }
    program->log = read(log);
    if (made) rename(stem.c_str(), library.c_str());
    for (const std::string& path : {given, expanded, log}) unlink(path.c_str());
    if (made) unlink(written.c_str());
    return made ? SUCCESS : COMPILATION;
}

}  // namespace

API int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return SUCCESS;
}

API int nvrtcCreateProgram(Program** program, const char* text, const char*, int, const char* const*, const char* const*) {
    *program = new Program{.text = text};
    return SUCCESS;
}

API int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    bool takes_lambdas = false;
    for (int i = 0; i < count; ++i) {
        std::string option = options[i];
        bool is_default = option == "--device-as-default-execution-space";
        bool is_known = is_default || option == "--gpu-architecture=sm_80" || option == "--gpu-architecture=compute_80";
        if (!is_known) return refuse(INVALID_OPTION, "nvrtc: option %s", options[i]);
        takes_lambdas = takes_lambdas || is_default;
    }
    // As NVRTC up to 13.0, for which a lambda is a function of the CPU.
    bool has_lambdas = std::regex_search(program->text, std::regex(R"(\[[&=]\]\()"));
    if (has_lambdas && !takes_lambdas) {
        program->log = "a function without execution space annotations is considered a host function";
        return COMPILATION;
    }
    size_t hash = std::hash<std::string>()(program->text + read(folder() + "/device_code.h"));
    std::string library = folder() + "/kernels-" + std::to_string(hash) + ".so";
    // Ranks that start together wait for the first.
    int lock = open((folder() + "/nvrtc.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    flock(lock, LOCK_EX);
    int result = access(library.c_str(), R_OK) == 0 ? 0 : build(program, library);
    close(lock);
    program->image = "STANDIN " + library;
    return result;
}

#define IMAGE(NAME, TEXT) \
    API int NAME##Size(Program* program, size_t* bytes) { \
        *bytes = program->TEXT.size() + 1; \
        return SUCCESS; \
    } \
    API int NAME(Program* program, char* place) { \
        memcpy(place, program->TEXT.c_str(), program->TEXT.size() + 1); \
        return SUCCESS; \
    }
IMAGE(nvrtcGetCUBIN, image)
IMAGE(nvrtcGetPTX, image)
IMAGE(nvrtcGetProgramLog, log)

API int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}
