/* A sound card for tests: an external plug-in of ALSA with a clock of its own. What is played goes to a file; what is
   recorded is a ramp, frame n being n / 2^20 in every channel. In the configuration:
       type zbmd_test_card  path "FILE"  ppm NUMBER */
#include <alsa/asoundlib.h>
#include <alsa/pcm_external.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    snd_pcm_ioplug_t io;
    int timer;
    FILE *file;
    double ppm;
    double start_s;
    uint64_t recorded;
} card_t;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int card_start(snd_pcm_ioplug_t *io) {
    ((card_t *)io->private_data)->start_s = now_s();
    return 0;
}

static int card_stop(snd_pcm_ioplug_t *io) {
    (void)io;
    return 0;
}

static snd_pcm_sframes_t card_pointer(snd_pcm_ioplug_t *io) {
    card_t *card = io->private_data;
    if (io->state != SND_PCM_STATE_RUNNING && io->state != SND_PCM_STATE_DRAINING)
        return 0;
    uint64_t done = (uint64_t)((now_s() - card->start_s) * io->rate * (1 + card->ppm * 1e-6));
    if (io->stream == SND_PCM_STREAM_PLAYBACK && done > io->appl_ptr)
        return -EPIPE;
    if (io->stream == SND_PCM_STREAM_CAPTURE && done > io->appl_ptr + io->buffer_size)
        return -EPIPE;
    return (snd_pcm_sframes_t)(done % io->buffer_size);
}

static snd_pcm_sframes_t card_transfer(snd_pcm_ioplug_t *io, const snd_pcm_channel_area_t *areas,
                                       snd_pcm_uframes_t offset, snd_pcm_uframes_t size) {
    card_t *card = io->private_data;
    float *samples = (float *)((char *)areas->addr + (areas->first + areas->step * offset) / 8);
    if (io->stream == SND_PCM_STREAM_PLAYBACK) {
        fwrite(samples, 4 * io->channels, size, card->file);
        return (snd_pcm_sframes_t)size;
    }
    for (snd_pcm_uframes_t frame = 0; frame < size; frame++) {
        for (unsigned int channel = 0; channel < io->channels; channel++)
            samples[frame * io->channels + channel] = (float)card->recorded / (1 << 20);
        card->recorded++;
    }
    return (snd_pcm_sframes_t)size;
}

static int card_poll_revents(snd_pcm_ioplug_t *io, struct pollfd *fds, unsigned int count,
                             unsigned short *revents) {
    uint64_t ticks;
    *revents = 0;
    if (count > 0 && read(fds[0].fd, &ticks, sizeof ticks) == sizeof ticks)
        *revents = io->stream == SND_PCM_STREAM_PLAYBACK ? POLLOUT : POLLIN;
    return 0;
}

static int card_close(snd_pcm_ioplug_t *io) {
    card_t *card = io->private_data;
    if (card->file)
        fclose(card->file);
    close(card->timer);
    free(card);
    return 0;
}

static const snd_pcm_ioplug_callback_t callbacks = {
    .start = card_start,
    .stop = card_stop,
    .pointer = card_pointer,
    .transfer = card_transfer,
    .poll_revents = card_poll_revents,
    .close = card_close,
};

SND_PCM_PLUGIN_DEFINE_FUNC(zbmd_test_card) {
    const char *path = "/dev/null";
    double ppm = 0;
    snd_config_iterator_t i, next;
    (void)root;
    snd_config_for_each(i, next, conf) {
        snd_config_t *entry = snd_config_iterator_entry(i);
        const char *id;
        if (snd_config_get_id(entry, &id) < 0)
            continue;
        if (strcmp(id, "path") == 0)
            snd_config_get_string(entry, &path);
        else if (strcmp(id, "ppm") == 0)
            snd_config_get_ireal(entry, &ppm);
    }

    card_t *card = calloc(1, sizeof *card);
    if (!card)
        return -ENOMEM;
    if (stream == SND_PCM_STREAM_PLAYBACK && !(card->file = fopen(path, "ab")))
        return -errno;
    card->ppm = ppm;
    card->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct itimerspec every = {{0, 1000000}, {0, 1000000}};
    timerfd_settime(card->timer, 0, &every, NULL);

    card->io.version = SND_PCM_IOPLUG_VERSION;
    card->io.name = "a sound card for tests";
    card->io.callback = &callbacks;
    card->io.private_data = card;
    card->io.poll_fd = card->timer;
    card->io.poll_events = POLLIN;
    int error = snd_pcm_ioplug_create(&card->io, name, stream, mode);
    if (error < 0)
        return error;

    static const unsigned int access[] = {SND_PCM_ACCESS_RW_INTERLEAVED};
    static const unsigned int formats[] = {SND_PCM_FORMAT_FLOAT_LE};
    snd_pcm_ioplug_set_param_list(&card->io, SND_PCM_IOPLUG_HW_ACCESS, 1, access);
    snd_pcm_ioplug_set_param_list(&card->io, SND_PCM_IOPLUG_HW_FORMAT, 1, formats);
    snd_pcm_ioplug_set_param_minmax(&card->io, SND_PCM_IOPLUG_HW_CHANNELS, 1, 2);
    snd_pcm_ioplug_set_param_minmax(&card->io, SND_PCM_IOPLUG_HW_RATE, 8000, 96000);
    snd_pcm_ioplug_set_param_minmax(&card->io, SND_PCM_IOPLUG_HW_PERIOD_BYTES, 128, 1 << 16);
    snd_pcm_ioplug_set_param_minmax(&card->io, SND_PCM_IOPLUG_HW_BUFFER_BYTES, 256, 1 << 18);
    snd_pcm_ioplug_set_param_minmax(&card->io, SND_PCM_IOPLUG_HW_PERIODS, 2, 64);
    *pcmp = card->io.pcm;
    return 0;
}

SND_PCM_PLUGIN_SYMBOL(zbmd_test_card);
