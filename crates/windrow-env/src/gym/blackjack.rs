use std::sync::Arc;

use serde::{Deserialize, Serialize};
use windrow_slab::{Key, Row, RowMut};

use super::space::choice;
use crate::{Env, EnvError, EnvRng, EnvSpec, NumpyRng, Outcome, Spec, StateVisitor};

/// Draw cards for a sum closer to 21 than the dealer's, but not above.
///
/// These are the arguments of `Blackjack-v1`, named as Gymnasium names them: of the id alone, `sab`
/// is set, and the other is not. Observation: the player's sum, the dealer's open card and whether
/// the player has an ace that counts 11, each `int64`, as `("observation", "0")`,
/// `("observation", "1")` and `("observation", "2")`. Action `int64`: 0 stick, 1 hit. Reward 1 for
/// a game that is won, -1 for one that is lost.
///
/// Source: R. Sutton and A. Barto, "Reinforcement Learning: An Introduction" (2020), example 5.1,
/// as in Gymnasium.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Blackjack {
    /// Whether an ace and a ten at the beginning win 1.5. Without effect beside `sab`.
    pub natural: bool,
    /// Whether to play as in the book: an ace and a ten at the beginning win unless the dealer has
    /// them too.
    pub sab: bool,
}

/// The dealer draws below this sum.
const DEALER_STICKS: u32 = 17;
const MOST: u32 = 21;
/// The values that a drawn card may have.
const DECK: [u32; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10];
const SUITS: u32 = 4;
/// Pictures that a ten may have.
const PICTURES: u32 = 3;

/// The cards of the player or the dealer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Hand {
    /// The dealer's is open.
    first: u32,
    /// Aces count 1.
    sum: u32,
    cards: u32,
    has_ace: bool,
}

impl Hand {
    fn deal(rng: &mut NumpyRng) -> Self {
        let first = draw(rng);
        let mut hand = Self {
            first,
            sum: first,
            cards: 1,
            has_ace: first == 1,
        };
        hand.add(draw(rng));
        hand
    }

    fn add(&mut self, card: u32) {
        // Who goes on after 21 would get there.
        self.sum = self.sum.saturating_add(card);
        self.cards = self.cards.saturating_add(1);
        self.has_ace |= card == 1;
    }

    /// Whether a hand of cards from the deck can have these values.
    fn is_dealt(self) -> bool {
        let sums = u64::from(self.cards)..=10 * u64::from(self.cards);
        (1..=10).contains(&self.first) && self.cards >= 2 && sums.contains(&self.sum.into())
    }

    /// Whether an ace counts 11.
    fn has_usable_ace(self) -> bool {
        self.has_ace && self.sum <= MOST - 10
    }

    fn total(self) -> u32 {
        self.sum + 10 * u32::from(self.has_usable_ace())
    }

    fn is_bust(self) -> bool {
        self.sum > MOST
    }

    /// The total, or nothing where it is above 21.
    fn score(self) -> u32 {
        if self.is_bust() { 0 } else { self.total() }
    }

    /// Whether these are an ace and a ten.
    fn is_natural(self) -> bool {
        self.cards == 2 && self.has_ace && self.sum == 11
    }
}

fn draw(rng: &mut NumpyRng) -> u32 {
    DECK[rng.integers(DECK.len() as u32) as usize]
}

/// What the player may do, by the number of the action.
const CHOICES: [f64; 2] = [0.0, 1.0];

/// A game of [`Blackjack`].
#[derive(Debug, Clone)]
pub(crate) struct BlackjackGame {
    rules: Blackjack,
    /// The player's hand and the dealer's.
    hands: Option<(Hand, Hand)>,
    rng: EnvRng,
    spec: Arc<EnvSpec>,
}

impl Blackjack {
    /// The environment, called `id`.
    pub(crate) fn env(self, id: &str) -> BlackjackGame {
        let cards = [32, 11, 2].map(Spec::discrete).into_iter().enumerate();
        let cards = Spec::composite(cards.map(|(place, spec)| (place.to_string(), spec)));
        let observation = Spec::composite([("observation", cards)]);
        BlackjackGame {
            rules: self,
            hands: None,
            rng: EnvRng::new(),
            spec: Arc::new(EnvSpec::new(id, observation, Spec::discrete(CHOICES.len()))),
        }
    }

    /// The reward of a game in which nobody draws another card.
    fn reward(self, player: Hand, dealer: Hand) -> f32 {
        let (own, other) = (player.score(), dealer.score());
        let reward = f32::from(i8::from(own > other) - i8::from(own < other));
        match player.is_natural() {
            true if self.sab && !dealer.is_natural() => 1.0,
            true if !self.sab && self.natural && reward == 1.0 => 1.5,
            _ => reward,
        }
    }
}

fn write(player: Hand, dealer: Hand, obs: &mut RowMut<'_>) -> Result<(), EnvError> {
    let seen = [
        player.total(),
        dealer.first,
        u32::from(player.has_usable_ace()),
    ];
    for (leaf, value) in seen.into_iter().enumerate() {
        obs.write(Key::new(leaf), &[i64::from(value)])?;
    }
    Ok(())
}

impl Env for BlackjackGame {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let rng = self.rng.for_reset(seed);
        let dealer = Hand::deal(rng);
        let player = Hand::deal(rng);
        // Gymnasium draws how the open card looks.
        rng.integers(SUITS);
        if dealer.first == 10 {
            rng.integers(PICTURES);
        }
        self.hands = Some((player, dealer));
        write(player, dealer, &mut obs)
    }

    #[inline]
    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let hits = choice(action, &CHOICES)? == 1.0;
        let Some((player, dealer)) = &mut self.hands else {
            return Err(EnvError::NotReset);
        };
        let rng = self.rng.present();
        let (reward, terminated) = if hits {
            player.add(draw(rng));
            (if player.is_bust() { -1.0 } else { 0.0 }, player.is_bust())
        } else {
            while dealer.total() < DEALER_STICKS {
                dealer.add(draw(rng));
            }
            (self.rules.reward(*player, *dealer), true)
        };
        write(*player, *dealer, &mut obs)?;
        Ok(Outcome {
            reward,
            terminated,
            truncated: false,
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.checked(&mut self.hands, |hands| match hands {
            Some((player, dealer)) if !(player.is_dealt() && dealer.is_dealt()) => {
                Err(EnvError::State {
                    expected: format!("the hands of a game of {}", self.spec.id),
                    got: format!("{player:?} and {dealer:?}"),
                })
            }
            _ => Ok(()),
        })?;
        state.value(&mut self.rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_choices_are_checked};
    use crate::testing::check_env;

    fn hand(cards: &[u32]) -> Hand {
        let mut hand = Hand {
            first: cards[0],
            sum: cards[0],
            cards: 1,
            has_ace: cards[0] == 1,
        };
        cards[1..].iter().for_each(|&card| hand.add(card));
        hand
    }

    #[test]
    fn an_ace_counts_eleven_where_that_is_not_too_much() {
        let totals = [&[1, 10][..], &[1, 1], &[10, 5, 1], &[10, 10, 2], &[1, 6]];
        let totals = totals.map(|cards| (hand(cards).total(), hand(cards).score()));
        assert_eq!(totals, [(21, 21), (12, 12), (16, 16), (22, 0), (17, 17)]);
    }

    #[test]
    fn an_ace_and_a_ten_are_rewarded_as_the_rules_say() {
        let (natural, other) = (hand(&[10, 1]), hand(&[10, 5, 6]));
        let rules = |sab, natural| Blackjack { natural, sab };
        let rewards = [
            (natural, other),
            (natural, natural),
            (other, natural),
            (natural, hand(&[9, 9])),
        ];
        let of = |rules: Blackjack| rewards.map(|(player, dealer)| rules.reward(player, dealer));
        assert_eq!(of(rules(true, false)), [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(of(rules(true, true)), [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(of(rules(false, true)), [0.0, 0.0, 0.0, 1.5]);
        assert_eq!(of(rules(false, false)), [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn the_environment_keeps_its_promises() {
        let env = || Blackjack::default().env("Blackjack-v1");
        let report = check_env(&mut env(), 1).unwrap();
        assert!(report.terminated > 300);
        assert_choices_are_checked(env(), 2);
        let mut env = Driver::new(env());
        env.reset(Some(1));
        let (_, end) = env.run(1i64);
        assert_eq!((end.reward, end.terminated), (-1.0, true));
        assert!(env.leaf::<i64>(0)[0] > 21);
    }
}
