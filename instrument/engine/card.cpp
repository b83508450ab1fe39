#include "card.h"

#include <string.h>

#include "efaprof_moe.h"

namespace efaprof::dispatch {

namespace {

constexpr uint32_t MAGIC = 0x314D4645; // "EFM1"

// EFAPROF_MOE_CONTACT_BYTES on the way from rank to rank.
struct Card {
    uint32_t magic;
    SignalMode signal;
    Path path;
    protocol::Shape shape; // that of the sender must be ours
    Identity identity;
    Contact contact;
};
static_assert(sizeof(Card) <= EFAPROF_MOE_CONTACT_BYTES, "fits");

bool is_same(const protocol::Shape &one, const protocol::Shape &other) {
    return memcmp(&one, &other, sizeof one) == 0;
}

} // namespace

void write_card(const Options &options, uint32_t rank, const Contact &contact, void *bytes) {
    Card card = {MAGIC, options.signal, options.path, options.shape, identity_here(rank), contact};
    memset(bytes, 0, EFAPROF_MOE_CONTACT_BYTES);
    memcpy(bytes, &card, sizeof card);
}

void read_cards(const Options &options, uint32_t own_rank, const void *bytes, Contact *contacts, Identity *identities) {
    for (uint32_t rank = 0; rank < options.shape.ranks; rank++) {
        Card card;
        memcpy(&card, static_cast<const uint8_t *>(bytes) + size_t{rank} * EFAPROF_MOE_CONTACT_BYTES, sizeof card);
        if (card.magic != MAGIC || card.identity.rank != rank)
            fail(Cause::Failed, "contact %u is not one of rank %u", rank, rank);
        if (!is_same(card.shape, options.shape) || card.signal != options.signal || card.path != options.path)
            fail(Cause::Failed, "rank %u was opened with other options than rank %u", rank, own_rank);
        contacts[rank] = card.contact;
        identities[rank] = card.identity;
    }
}

} // namespace efaprof::dispatch
