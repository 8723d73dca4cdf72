// A receiver for tests: a module of SoapySDR. Sample n is the bytes n mod 251 and n / 251 mod 256, sampled n / rate
// seconds after the process opened it first. Arguments: lose_at and lose (samples), time=0 (no time stamps), and
// die_at (the first opening ends there).
#include <SoapySDR/Device.hpp>
#include <SoapySDR/Formats.hpp>
#include <SoapySDR/Registry.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

using Clock = std::chrono::steady_clock;

static Clock::time_point epoch;
static unsigned openings = 0;

class Receiver : public SoapySDR::Device {
    double rate = 1;
    long long next = 0;
    const long long loseAt, lose, dieAt;
    const bool hasTime;
    bool hasLost = false;

    static long long number(const SoapySDR::Kwargs &args, const std::string &key, long long otherwise) {
        const auto found = args.find(key);
        return found == args.end() ? otherwise : std::stoll(found->second);
    }

public:
    explicit Receiver(const SoapySDR::Kwargs &args)
        : loseAt(number(args, "lose_at", -1)), lose(number(args, "lose", 0)),
          dieAt(openings == 0 ? number(args, "die_at", -1) : -1), hasTime(number(args, "time", 1) != 0) {
        openings++;
    }

    std::string getDriverKey() const override { return "zbmd_test"; }
    size_t getNumChannels(const int) const override { return 1; }
    void setSampleRate(const int, const size_t, const double wanted) override { rate = wanted; }
    double getSampleRate(const int, const size_t) const override { return rate; }

    SoapySDR::Stream *setupStream(const int, const std::string &format, const std::vector<size_t> &,
                                  const SoapySDR::Kwargs &) override {
        if (format != SOAPY_SDR_CU8)
            throw std::runtime_error("only CU8");
        return reinterpret_cast<SoapySDR::Stream *>(this);
    }

    void closeStream(SoapySDR::Stream *) override {}

    int activateStream(SoapySDR::Stream *, const int, const long long, const size_t) override {
        if (openings == 1)
            epoch = Clock::now();
        next = there();
        return 0;
    }

    int deactivateStream(SoapySDR::Stream *, const int, const long long) override { return 0; }

    long long there() const {
        return static_cast<long long>(std::chrono::duration<double>(Clock::now() - epoch).count() * rate);
    }

    int readStream(SoapySDR::Stream *, void *const *buffers, const size_t room, int &flags,
                   long long &timeNs, const long timeoutUs) override {
        const auto until = Clock::now() + std::chrono::microseconds(timeoutUs);
        while (there() <= next && Clock::now() < until)
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (dieAt >= 0 && next >= dieAt)
            return SOAPY_SDR_STREAM_ERROR;
        if (loseAt >= 0 && next >= loseAt && !hasLost) {
            hasLost = true;
            next += lose;
            if (!hasTime)
                return SOAPY_SDR_OVERFLOW;
        }
        long long count = std::min<long long>(there() - next, static_cast<long long>(room));
        if (loseAt >= 0 && !hasLost)
            count = std::min(count, loseAt - next);
        if (count <= 0)
            return SOAPY_SDR_TIMEOUT;

        auto *bytes = static_cast<uint8_t *>(buffers[0]);
        for (long long index = next; index < next + count; index++) {
            *bytes++ = static_cast<uint8_t>(index % 251);
            *bytes++ = static_cast<uint8_t>(index / 251 % 256);
        }
        flags = hasTime ? SOAPY_SDR_HAS_TIME : 0;
        timeNs = static_cast<long long>(static_cast<double>(next) / rate * 1e9 + 0.5);
        next += count;
        return static_cast<int>(count);
    }
};

static SoapySDR::KwargsList find(const SoapySDR::Kwargs &args) {
    const auto driver = args.find("driver");
    if (driver == args.end() || driver->second != "zbmd_test")
        return {};
    return {args};
}

static SoapySDR::Device *make(const SoapySDR::Kwargs &args) { return new Receiver(args); }

static SoapySDR::Registry registered("zbmd_test", &find, &make, SOAPY_SDR_ABI_VERSION);
