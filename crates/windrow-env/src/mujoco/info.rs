//! What Gymnasium's environments return in `info`, as data.

use super::table::{
    ACTION, ALIVE, ALIVE_OR_ENDING, ARM_DISTANCE, CONTACT_COST, CONTROL, GOAL_DISTANCE,
    HUMANOID_CONTACT_COST, PLAIN_ACTION, Point, REACHER_DISTANCE, STANDUP_CONTROL, STANDUP_IMPACT,
    Term, Value, WEIGHED_ACTION, WEIGHED_FORWARD, WEIGHED_IMPACT, WEIGHED_REACHER_DISTANCE, When,
};

/// An entry of `info`.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) of: Told,
    /// Whether a reset returns it, too.
    pub(super) at_reset: bool,
    pub(super) when: When,
}

#[derive(Clone, Copy)]
pub(super) enum Told {
    Number(Term),
    /// All numbers of a field.
    Field(&'static str),
}

/// An entry that only steps return,
const fn told(name: &'static str, term: Term) -> Entry {
    Entry {
        name,
        of: Told::Number(term),
        at_reset: false,
        when: When::Always,
    }
}

/// and one that resets return, too.
const fn always(name: &'static str, term: Term) -> Entry {
    Entry {
        at_reset: true,
        ..told(name, term)
    }
}

const fn tendons(name: &'static str, field: &'static str) -> Entry {
    Entry {
        of: Told::Field(field),
        ..always(name, X)
    }
}

const fn x_velocity(point: Point) -> Entry {
    told("x_velocity", Term::Forward(Value::Is(1.0), point))
}

const fn y_velocity(point: Point) -> Entry {
    told("y_velocity", Term::Sideways(point))
}

const X: Term = Term::Along(Point::Joints, 0);
const Y: Term = Term::Along(Point::Joints, 1);
const AWAY: Term = Term::Away(Point::Joints);
pub(super) const FORWARD: Term = Term::Forward(WEIGHED_FORWARD, Point::Joints);
const REWARD_FORWARD: Entry = told("reward_forward", FORWARD);
const REWARD_CTRL: Entry = told("reward_ctrl", Term::Minus(&ACTION));
const REWARD_SURVIVE: Entry = told("reward_survive", ALIVE);

pub(super) const CHEETAH_5: &[Entry] = &[
    always("x_position", X),
    x_velocity(Point::Joints),
    REWARD_FORWARD,
    REWARD_CTRL,
];
pub(super) const WALKING_4: &[Entry] = &[told("x_position", X), x_velocity(Point::Joints)];
pub(super) const WALKING_5: &[Entry] = &[
    always("x_position", X),
    always("z_distance_from_origin", Term::Moved(1)),
    x_velocity(Point::Joints),
    REWARD_FORWARD,
    REWARD_CTRL,
    REWARD_SURVIVE,
];
const TORSO: Point = Point::Named("torso");
pub(super) const ANT_4: &[Entry] = &[
    told("reward_forward", Term::Forward(Value::Is(1.0), TORSO)),
    Entry {
        when: When::Unless("use_contact_forces"),
        ..REWARD_CTRL
    },
    // Gymnasium has it under this name.
    Entry {
        when: When::If("use_contact_forces"),
        ..told("reward_ctrl", Term::Minus(&CONTACT_COST))
    },
    told("reward_survive", ALIVE_OR_ENDING),
    told("x_position", Term::Along(TORSO, 0)),
    told("y_position", Term::Along(TORSO, 1)),
    told("distance_from_origin", Term::Away(TORSO)),
    x_velocity(TORSO),
    y_velocity(TORSO),
    told("forward_reward", Term::Forward(Value::Is(1.0), TORSO)),
];
const MAIN_BODY: Point = Point::Of("main_body");
pub(super) const ANT_5: &[Entry] = &[
    always("x_position", X),
    always("y_position", Y),
    always("distance_from_origin", AWAY),
    x_velocity(MAIN_BODY),
    y_velocity(MAIN_BODY),
    told("reward_forward", Term::Forward(WEIGHED_FORWARD, MAIN_BODY)),
    REWARD_CTRL,
    told("reward_contact", Term::Minus(&CONTACT_COST)),
    REWARD_SURVIVE,
];
pub(super) const CENTRE_FORWARD: Term = Term::Forward(WEIGHED_FORWARD, Point::Centre);
pub(super) const HUMANOID_4: &[Entry] = &[
    told("reward_linvel", CENTRE_FORWARD),
    told("reward_quadctrl", Term::Minus(&CONTROL)),
    told("reward_alive", ALIVE_OR_ENDING),
    told("x_position", Term::Along(Point::Centre, 0)),
    told("y_position", Term::Along(Point::Centre, 1)),
    told("distance_from_origin", Term::Away(Point::Centre)),
    x_velocity(Point::Centre),
    y_velocity(Point::Centre),
    told("forward_reward", CENTRE_FORWARD),
];
pub(super) const HUMANOID_5: &[Entry] = &[
    always("x_position", X),
    always("y_position", Y),
    tendons("tendon_length", "ten_length"),
    tendons("tendon_velocity", "ten_velocity"),
    always("distance_from_origin", AWAY),
    x_velocity(Point::Centre),
    y_velocity(Point::Centre),
    REWARD_SURVIVE,
    told("reward_forward", CENTRE_FORWARD),
    told("reward_ctrl", Term::Minus(&CONTROL)),
    told("reward_contact", Term::Minus(&HUMANOID_CONTACT_COST)),
];
pub(super) const STANDUP_4: &[Entry] = &[
    told("reward_linup", Term::Height),
    told("reward_quadctrl", Term::Minus(&STANDUP_CONTROL)),
    told("reward_impact", Term::Minus(&STANDUP_IMPACT)),
];
pub(super) const STANDUP_5: &[Entry] = &[
    always("x_position", X),
    always("y_position", Y),
    always("z_distance_from_origin", Term::Moved(2)),
    tendons("tendon_length", "ten_length"),
    tendons("tendon_velocity", "ten_velocity"),
    told("reward_linup", Term::Height),
    told("reward_quadctrl", Term::Minus(&CONTROL)),
    told("reward_impact", Term::Minus(&WEIGHED_IMPACT)),
];
pub(super) const SWIMMER_4: &[Entry] = &[
    told("reward_fwd", FORWARD),
    REWARD_CTRL,
    told("x_position", X),
    told("y_position", Y),
    told("distance_from_origin", AWAY),
    x_velocity(Point::Joints),
    y_velocity(Point::Joints),
    told("forward_reward", FORWARD),
];
pub(super) const SWIMMER_5: &[Entry] = &[
    always("x_position", X),
    always("y_position", Y),
    always("distance_from_origin", AWAY),
    x_velocity(Point::Joints),
    y_velocity(Point::Joints),
    REWARD_FORWARD,
    REWARD_CTRL,
];

pub(super) const CHEETAH_4: &[Entry] = &[
    told("x_position", X),
    x_velocity(Point::Joints),
    told("reward_run", FORWARD),
    REWARD_CTRL,
];

pub(super) const REACHER_4: &[Entry] = &[
    told("reward_dist", Term::Minus(&REACHER_DISTANCE)),
    told("reward_ctrl", Term::Minus(&PLAIN_ACTION)),
];

pub(super) const REACHER_5: &[Entry] = &[
    told("reward_dist", Term::Minus(&WEIGHED_REACHER_DISTANCE)),
    told("reward_ctrl", Term::Minus(&WEIGHED_ACTION)),
];

pub(super) const PUSHER_5: &[Entry] = &[
    told("reward_dist", Term::Minus(&GOAL_DISTANCE)),
    told("reward_ctrl", Term::Minus(&WEIGHED_ACTION)),
    told("reward_near", Term::Minus(&ARM_DISTANCE)),
];

pub(super) const PENDULUM_5: &[Entry] = &[told("reward_survive", Term::Alive(Value::Is(1.0)))];

pub(super) const DOUBLE_PENDULUM_5: &[Entry] = &[
    REWARD_SURVIVE,
    told("distance_penalty", Term::Minus(&Term::TipDistance)),
    told("velocity_penalty", Term::Minus(&Term::TipSpeed)),
];
