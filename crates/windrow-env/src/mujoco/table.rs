//! Observations, rewards and ends of episodes of Gymnasium's environments, as data.

use super::info::{self, CENTRE_FORWARD, Entry, FORWARD};
use super::settings::Default::{self, Body, Flag, Number, Range};

/// An environment of Gymnasium.
pub(super) struct Table {
    pub(super) id: &'static str,
    /// The model, and MuJoCo's steps in one of the environment's.
    pub(super) model: (&'static str, usize),
    pub(super) max_episode_steps: usize,
    pub(super) arguments: &'static [(&'static str, Default)],
    pub(super) observation: &'static [Part],
    /// The reward is the sum of these,
    pub(super) gains: &'static [Term],
    /// less the sum of these.
    pub(super) costs: &'static [Term],
    /// A simulation is healthy as long as all of these hold.
    pub(super) healthy: &'static [Rule],
    /// Whether an unhealthy one has terminated.
    pub(super) terminates: When,
    pub(super) start: Start,
    /// What Gymnasium returns in `info`.
    pub(super) info: &'static [Entry],
}

/// Whether something holds, by an argument that is true or false.
#[derive(Clone, Copy)]
pub(super) enum When {
    Always,
    If(&'static str),
    Unless(&'static str),
}

/// A number: of the table, or an argument.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Is(f64),
    Of(&'static str),
}

/// An interval: of the table, or an argument.
#[derive(Clone, Copy)]
pub(super) enum Span {
    Is(f64, f64),
    Of(&'static str),
}

/// Numbers that are observed one after the other.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) of: Source,
    /// The first, and the one after the last.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) map: Map,
    pub(super) when: When,
}

#[derive(Clone, Copy)]
pub(super) enum Source {
    Field(&'static str),
    /// The position of a body.
    Place(&'static str),
    /// The way from the second body to the first.
    Way(&'static str, &'static str),
}

#[derive(Clone, Copy)]
pub(super) enum Map {
    Same,
    Clip(Span),
    Sin,
    Cos,
}

/// A part of the reward, or what `info` says.
#[derive(Clone, Copy)]
pub(super) enum Term {
    /// Speed along the first axis,
    Forward(Value, Point),
    /// and along the second.
    Sideways(Point),
    /// Where a point lies along an axis.
    Along(Point, usize),
    /// How far it is from the origin, seen from above.
    Away(Point),
    /// How far a position is from that of the model.
    Moved(usize),
    /// For a healthy simulation,
    Alive(Value),
    /// or one that terminates where it is not.
    AliveOrEnding(Value),
    Constant(f64),
    /// Squares of actions, in the precision of actions.
    Action(Value),
    /// Squares of controls.
    Control(Value),
    /// Squares of forces on bodies, each within the first interval, the whole within the second.
    Contact(Value, Span, Span, When),
    /// Height over a step of MuJoCo.
    Height,
    /// Distance of two bodies, now or before the step.
    Distance(Value, &'static str, &'static str, Moment),
    /// How far the tip of a double pendulum is from upright, and how fast its joints turn.
    TipDistance,
    TipSpeed,
    Minus(&'static Term),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Before,
    Now,
}

/// The point whose speed is rewarded, or whose place `info` says.
#[derive(Clone, Copy)]
pub(super) enum Point {
    /// The first two positions.
    Joints,
    Named(&'static str),
    /// The body of an argument.
    Of(&'static str),
    /// The centre of all masses.
    Centre,
}

#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Positions and velocities are.
    Finite,
    /// A position lies between two numbers,
    Inside(usize, Span),
    /// or is one of them.
    Within(usize, Span),
    /// Positions and velocities from this one on lie between two numbers.
    AllInside(usize, Span),
    /// The first site is higher than this.
    Above(f64),
}

/// How an episode begins.
pub(super) struct Start {
    /// Largest change of a position.
    pub(super) qpos: Value,
    pub(super) qvel: Noise,
    pub(super) goal: Goal,
}

pub(super) enum Noise {
    Uniform(Value),
    Normal(Value),
}

/// A goal that a reset draws.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    None,
    /// A target in a disk, the last two positions.
    Disk,
    /// An object away from the goal, the last four positions; the others do not change.
    Object,
}

const fn field(name: &'static str) -> Part {
    Part {
        of: Source::Field(name),
        from: 0,
        to: usize::MAX,
        map: Map::Same,
        when: When::Always,
    }
}

const fn place(body: &'static str) -> Part {
    field(body).of(Source::Place(body))
}

impl Part {
    const fn of(self, of: Source) -> Self {
        Self { of, ..self }
    }

    const fn from(self, from: usize) -> Self {
        Self { from, ..self }
    }

    const fn to(self, to: usize) -> Self {
        Self { to, ..self }
    }

    const fn map(self, map: Map) -> Self {
        Self { map, ..self }
    }

    const fn clip(self) -> Self {
        self.map(Map::Clip(Span::Is(-10.0, 10.0)))
    }

    const fn when(self, when: When) -> Self {
        Self { when, ..self }
    }
}

const EXCLUDE: &str = "exclude_current_positions_from_observation";
const WITH_POSITIONS: When = When::Unless(EXCLUDE);
const ENDS: &str = "terminate_when_unhealthy";
const NOISE: Value = Value::Of("reset_noise_scale");
const ANY: Span = Span::Is(f64::NEG_INFINITY, f64::INFINITY);

const EXCLUDED: (&str, Default) = (EXCLUDE, Flag(true));
const ENDING: (&str, Default) = (ENDS, Flag(true));

const fn noise(scale: f64) -> (&'static str, Default) {
    ("reset_noise_scale", Number(scale))
}

const fn forward(weight: f64) -> (&'static str, Default) {
    ("forward_reward_weight", Number(weight))
}

const fn ctrl(weight: f64) -> (&'static str, Default) {
    ("ctrl_cost_weight", Number(weight))
}

const fn alive(reward: f64) -> (&'static str, Default) {
    ("healthy_reward", Number(reward))
}

pub(super) const WEIGHED_FORWARD: Value = Value::Of("forward_reward_weight");
pub(super) const ACTION: Term = Term::Action(Value::Of("ctrl_cost_weight"));
pub(super) const CONTROL: Term = Term::Control(Value::Of("ctrl_cost_weight"));
pub(super) const ALIVE: Term = Term::Alive(Value::Of("healthy_reward"));
pub(super) const ALIVE_OR_ENDING: Term = Term::AliveOrEnding(Value::Of("healthy_reward"));
const DISTANCE: Value = Value::Of("reward_dist_weight");
const CONTACT: Value = Value::Of("contact_cost_weight");

pub(super) const CONTACT_COST: Term = Term::Contact(CONTACT, FORCES, ANY, When::Always);
pub(super) const HUMANOID_CONTACT_COST: Term =
    Term::Contact(CONTACT, ANY, Span::Of("contact_cost_range"), When::Always);
pub(super) const STANDUP_CONTROL: Term = Term::Control(Value::Is(0.1));
pub(super) const STANDUP_IMPACT: Term = Term::Contact(
    Value::Is(5e-7),
    ANY,
    Span::Is(f64::NEG_INFINITY, 10.0),
    When::Always,
);
pub(super) const WEIGHED_IMPACT: Term = Term::Contact(
    Value::Of("impact_cost_weight"),
    ANY,
    Span::Of("impact_cost_range"),
    When::Always,
);

const NO_RULE: &[Rule] = &[];
const STANDING: Span = Span::Of("healthy_z_range");
const WALKING: &[Rule] = &[
    Rule::Inside(1, STANDING),
    Rule::Inside(2, Span::Of("healthy_angle_range")),
];
const HOPPING: &[Rule] = &[
    Rule::AllInside(2, Span::Of("healthy_state_range")),
    WALKING[0],
    WALKING[1],
];
const CRAWLING: &[Rule] = &[Rule::Finite, Rule::Within(2, STANDING)];
const UPRIGHT: &[Rule] = &[Rule::Finite, Rule::Within(1, Span::Is(-0.2, 0.2))];

const NOISY: Start = Start {
    qpos: NOISE,
    qvel: Noise::Uniform(NOISE),
    goal: Goal::None,
};
const NOISY_NORMAL: Start = Start {
    qvel: Noise::Normal(NOISE),
    ..NOISY
};

const fn moving(first: usize) -> [Part; 3] {
    [
        field("qpos").to(first).when(WITH_POSITIONS),
        field("qpos").from(first),
        field("qvel"),
    ]
}

const RUNNING: &[Part] = &moving(1);
const SWIMMING: &[Part] = &moving(2);
const CLIPPED: &[Part] = &[RUNNING[0], RUNNING[1], RUNNING[2].clip()];
const FORCES: Span = Span::Of("contact_force_range");
const ANT_4: &[Part] = &[
    SWIMMING[0],
    SWIMMING[1],
    SWIMMING[2],
    field("cfrc_ext")
        .map(Map::Clip(FORCES))
        .when(When::If("use_contact_forces")),
];
const ANT_5: &[Part] = &[
    SWIMMING[0],
    SWIMMING[1],
    SWIMMING[2],
    field("cfrc_ext")
        .from(6)
        .map(Map::Clip(FORCES))
        .when(When::If("include_cfrc_ext_in_observation")),
];
const HUMANOID_4: &[Part] = &[
    SWIMMING[0],
    SWIMMING[1],
    SWIMMING[2],
    field("cinert"),
    field("cvel"),
    field("qfrc_actuator"),
    field("cfrc_ext"),
];
const STANDUP_4: &[Part] = &[
    field("qpos").from(2),
    HUMANOID_4[2],
    HUMANOID_4[3],
    HUMANOID_4[4],
    HUMANOID_4[5],
    HUMANOID_4[6],
];
const HUMANOID_5: &[Part] = &[
    SWIMMING[0],
    SWIMMING[1],
    SWIMMING[2],
    field("cinert")
        .from(10)
        .when(When::If("include_cinert_in_observation")),
    field("cvel")
        .from(6)
        .when(When::If("include_cvel_in_observation")),
    field("qfrc_actuator")
        .from(6)
        .when(When::If("include_qfrc_actuator_in_observation")),
    field("cfrc_ext")
        .from(6)
        .when(When::If("include_cfrc_ext_in_observation")),
];
const REACH: Part = field("").of(Source::Way("fingertip", "target"));
const REACHER_4: &[Part] = &[
    field("qpos").to(2).map(Map::Cos),
    field("qpos").to(2).map(Map::Sin),
    field("qpos").from(2),
    field("qvel").to(2),
    REACH,
];
const REACHER_5: &[Part] = &[
    REACHER_4[0],
    REACHER_4[1],
    REACHER_4[2],
    REACHER_4[3],
    REACH.to(2),
];
const PUSHER: &[Part] = &[
    field("qpos").to(7),
    field("qvel").to(7),
    place("tips_arm"),
    place("object"),
    place("goal"),
];
const PENDULUM: &[Part] = &[field("qpos"), field("qvel")];
const DOUBLE_PENDULUM_4: &[Part] = &[
    field("qpos").to(1),
    field("qpos").from(1).map(Map::Sin),
    field("qpos").from(1).map(Map::Cos),
    field("qvel").clip(),
    field("qfrc_constraint").clip(),
];
const DOUBLE_PENDULUM_5: &[Part] = &[
    DOUBLE_PENDULUM_4[0],
    DOUBLE_PENDULUM_4[1],
    DOUBLE_PENDULUM_4[2],
    DOUBLE_PENDULUM_4[3],
    DOUBLE_PENDULUM_4[4].to(1),
];

/// Some environment, whose parts others replace.
const BASE: Table = Table {
    id: "HalfCheetah-v4",
    model: ("half_cheetah.xml", 5),
    max_episode_steps: 1000,
    arguments: &[forward(1.0), ctrl(0.1), noise(0.1), EXCLUDED],
    observation: RUNNING,
    gains: &[FORWARD],
    costs: &[ACTION],
    healthy: NO_RULE,
    terminates: When::Always,
    start: NOISY_NORMAL,
    info: info::CHEETAH_4,
};

const HOPPER_4: Table = Table {
    id: "Hopper-v4",
    model: ("hopper.xml", 4),
    arguments: &[
        forward(1.0),
        ctrl(1e-3),
        alive(1.0),
        ENDING,
        ("healthy_state_range", Range(-100.0, 100.0)),
        ("healthy_z_range", Range(0.7, f64::INFINITY)),
        ("healthy_angle_range", Range(-0.2, 0.2)),
        noise(5e-3),
        EXCLUDED,
    ],
    observation: CLIPPED,
    gains: &[
        Term::Forward(WEIGHED_FORWARD, Point::Joints),
        ALIVE_OR_ENDING,
    ],
    healthy: HOPPING,
    terminates: When::If(ENDS),
    start: NOISY,
    info: info::WALKING_4,
    ..BASE
};

const WALKER_4: Table = Table {
    id: "Walker2d-v4",
    model: ("walker2d.xml", 4),
    arguments: &[
        forward(1.0),
        ctrl(1e-3),
        alive(1.0),
        ENDING,
        ("healthy_z_range", Range(0.8, 2.0)),
        ("healthy_angle_range", Range(-1.0, 1.0)),
        noise(5e-3),
        EXCLUDED,
    ],
    healthy: WALKING,
    ..HOPPER_4
};

const ALIVE_AND_FORWARD: &[Term] = &[Term::Forward(WEIGHED_FORWARD, Point::Joints), ALIVE];

const ANT: Table = Table {
    id: "Ant-v4",
    model: ("ant.xml", 5),
    arguments: &[
        ctrl(0.5),
        ("use_contact_forces", Flag(false)),
        ("contact_cost_weight", Number(5e-4)),
        alive(1.0),
        ENDING,
        ("healthy_z_range", Range(0.2, 1.0)),
        ("contact_force_range", Range(-1.0, 1.0)),
        noise(0.1),
        EXCLUDED,
    ],
    observation: ANT_4,
    gains: &[
        Term::Forward(Value::Is(1.0), Point::Named("torso")),
        ALIVE_OR_ENDING,
    ],
    costs: &[
        ACTION,
        Term::Contact(CONTACT, FORCES, ANY, When::If("use_contact_forces")),
    ],
    healthy: CRAWLING,
    terminates: When::If(ENDS),
    info: info::ANT_4,
    ..BASE
};

const ANT_WITH_FORCES: Table = Table {
    id: "Ant-v5",
    arguments: &[
        forward(1.0),
        ctrl(0.5),
        ("contact_cost_weight", Number(5e-4)),
        alive(1.0),
        ("main_body", Body(1)),
        ENDING,
        ("healthy_z_range", Range(0.2, 1.0)),
        ("contact_force_range", Range(-1.0, 1.0)),
        noise(0.1),
        EXCLUDED,
        ("include_cfrc_ext_in_observation", Flag(true)),
    ],
    observation: ANT_5,
    gains: &[
        Term::Forward(WEIGHED_FORWARD, Point::Of("main_body")),
        ALIVE,
    ],
    costs: &[ACTION, CONTACT_COST],
    info: info::ANT_5,
    ..ANT
};

const HUMANOID: Table = Table {
    id: "Humanoid-v4",
    model: ("humanoid.xml", 5),
    arguments: &[
        forward(1.25),
        ctrl(0.1),
        alive(5.0),
        ENDING,
        ("healthy_z_range", Range(1.0, 2.0)),
        noise(1e-2),
        EXCLUDED,
    ],
    observation: HUMANOID_4,
    gains: &[CENTRE_FORWARD, ALIVE_OR_ENDING],
    costs: &[CONTROL],
    info: info::HUMANOID_4,
    healthy: &[Rule::Inside(2, STANDING)],
    terminates: When::If(ENDS),
    start: NOISY,
    ..BASE
};

const HUMANOID_WITH_FORCES: Table = Table {
    id: "Humanoid-v5",
    arguments: &[
        forward(1.25),
        ctrl(0.1),
        ("contact_cost_weight", Number(5e-7)),
        ("contact_cost_range", Range(f64::NEG_INFINITY, 10.0)),
        alive(5.0),
        ENDING,
        ("healthy_z_range", Range(1.0, 2.0)),
        noise(1e-2),
        EXCLUDED,
        ("include_cinert_in_observation", Flag(true)),
        ("include_cvel_in_observation", Flag(true)),
        ("include_qfrc_actuator_in_observation", Flag(true)),
        ("include_cfrc_ext_in_observation", Flag(true)),
    ],
    observation: HUMANOID_5,
    gains: &[CENTRE_FORWARD, ALIVE],
    costs: &[CONTROL, HUMANOID_CONTACT_COST],
    info: info::HUMANOID_5,
    ..HUMANOID
};

const STANDUP: Table = Table {
    id: "HumanoidStandup-v4",
    model: ("humanoidstandup.xml", 5),
    arguments: &[],
    observation: STANDUP_4,
    gains: &[
        Term::Height,
        Term::Minus(&STANDUP_CONTROL),
        Term::Minus(&STANDUP_IMPACT),
        Term::Constant(1.0),
    ],
    costs: &[],
    info: info::STANDUP_4,
    start: Start {
        qpos: Value::Is(0.01),
        qvel: Noise::Uniform(Value::Is(0.01)),
        goal: Goal::None,
    },
    ..BASE
};

const STANDUP_WITH_ARGUMENTS: Table = Table {
    id: "HumanoidStandup-v5",
    arguments: &[
        // Gymnasium takes it, and does not use it.
        ("uph_cost_weight", Number(1.0)),
        ctrl(0.1),
        ("impact_cost_weight", Number(5e-7)),
        ("impact_cost_range", Range(f64::NEG_INFINITY, 10.0)),
        noise(1e-2),
        EXCLUDED,
        ("include_cinert_in_observation", Flag(true)),
        ("include_cvel_in_observation", Flag(true)),
        ("include_qfrc_actuator_in_observation", Flag(true)),
        ("include_cfrc_ext_in_observation", Flag(true)),
    ],
    observation: HUMANOID_5,
    gains: &[
        Term::Height,
        Term::Minus(&CONTROL),
        Term::Minus(&WEIGHED_IMPACT),
        Term::Constant(1.0),
    ],
    info: info::STANDUP_5,
    start: NOISY,
    ..STANDUP
};

const SWIMMER: Table = Table {
    id: "Swimmer-v4",
    model: ("swimmer.xml", 4),
    arguments: &[forward(1.0), ctrl(1e-4), noise(0.1), EXCLUDED],
    observation: SWIMMING,
    start: NOISY,
    info: info::SWIMMER_4,
    ..BASE
};

pub(super) const PLAIN_ACTION: Term = Term::Action(Value::Is(1.0));
pub(super) const REACHER_DISTANCE: Term =
    Term::Distance(Value::Is(1.0), "fingertip", "target", Moment::Before);
pub(super) const WEIGHED_REACHER_DISTANCE: Term =
    Term::Distance(DISTANCE, "fingertip", "target", Moment::Now);

const REACHER: Table = Table {
    id: "Reacher-v4",
    model: ("reacher.xml", 2),
    max_episode_steps: 50,
    arguments: &[],
    observation: REACHER_4,
    gains: &[Term::Minus(&REACHER_DISTANCE), Term::Minus(&PLAIN_ACTION)],
    costs: &[],
    info: info::REACHER_4,
    start: Start {
        qpos: Value::Is(0.1),
        qvel: Noise::Uniform(Value::Is(0.005)),
        goal: Goal::Disk,
    },
    ..BASE
};

pub(super) const WEIGHED_ACTION: Term = Term::Action(Value::Of("reward_control_weight"));

pub(super) const GOAL_DISTANCE: Term = Term::Distance(DISTANCE, "object", "goal", Moment::Now);
pub(super) const ARM_DISTANCE: Term = Term::Distance(
    Value::Of("reward_near_weight"),
    "object",
    "tips_arm",
    Moment::Now,
);

const PUSHER_5: Table = Table {
    id: "Pusher-v5",
    model: ("pusher_v5.xml", 5),
    max_episode_steps: 100,
    arguments: &[
        ("reward_near_weight", Number(0.5)),
        ("reward_dist_weight", Number(1.0)),
        ("reward_control_weight", Number(0.1)),
    ],
    observation: PUSHER,
    gains: &[
        Term::Minus(&GOAL_DISTANCE),
        Term::Minus(&WEIGHED_ACTION),
        Term::Minus(&ARM_DISTANCE),
    ],
    info: info::PUSHER_5,
    start: Start {
        qpos: Value::Is(0.0),
        qvel: Noise::Uniform(Value::Is(0.005)),
        goal: Goal::Object,
    },
    ..REACHER
};

const PENDULUM_4: Table = Table {
    id: "InvertedPendulum-v4",
    model: ("inverted_pendulum.xml", 2),
    arguments: &[],
    observation: PENDULUM,
    gains: &[Term::Constant(1.0)],
    costs: &[],
    info: &[],
    healthy: UPRIGHT,
    start: STANDUP.start,
    ..BASE
};

const DOUBLE_4: Table = Table {
    id: "InvertedDoublePendulum-v4",
    model: ("inverted_double_pendulum.xml", 5),
    arguments: &[],
    observation: DOUBLE_PENDULUM_4,
    gains: &[
        Term::Constant(10.0),
        Term::Minus(&Term::TipDistance),
        Term::Minus(&Term::TipSpeed),
    ],
    costs: &[],
    info: &[],
    healthy: &[Rule::Above(1.0)],
    start: Start {
        qpos: Value::Is(0.1),
        qvel: Noise::Normal(Value::Is(0.1)),
        goal: Goal::None,
    },
    ..BASE
};

/// All of them.
pub(super) const TABLES: [Table; 21] = [
    BASE,
    Table {
        id: "HalfCheetah-v5",
        info: info::CHEETAH_5,
        ..BASE
    },
    HOPPER_4,
    Table {
        id: "Hopper-v5",
        gains: ALIVE_AND_FORWARD,
        info: info::WALKING_5,
        ..HOPPER_4
    },
    WALKER_4,
    Table {
        id: "Walker2d-v5",
        model: ("walker2d_v5.xml", 4),
        gains: ALIVE_AND_FORWARD,
        info: info::WALKING_5,
        ..WALKER_4
    },
    ANT,
    ANT_WITH_FORCES,
    HUMANOID,
    HUMANOID_WITH_FORCES,
    STANDUP,
    STANDUP_WITH_ARGUMENTS,
    SWIMMER,
    Table {
        id: "Swimmer-v5",
        info: info::SWIMMER_5,
        ..SWIMMER
    },
    REACHER,
    Table {
        id: "Reacher-v5",
        arguments: &[
            ("reward_dist_weight", Number(1.0)),
            ("reward_control_weight", Number(1.0)),
        ],
        observation: REACHER_5,
        gains: &[
            Term::Minus(&WEIGHED_REACHER_DISTANCE),
            Term::Minus(&WEIGHED_ACTION),
        ],
        info: info::REACHER_5,
        ..REACHER
    },
    PUSHER_5,
    PENDULUM_4,
    Table {
        id: "InvertedPendulum-v5",
        arguments: &[noise(0.01)],
        gains: &[Term::Alive(Value::Is(1.0))],
        info: info::PENDULUM_5,
        start: NOISY,
        ..PENDULUM_4
    },
    DOUBLE_4,
    Table {
        id: "InvertedDoublePendulum-v5",
        arguments: &[alive(10.0), noise(0.1)],
        observation: DOUBLE_PENDULUM_5,
        gains: &[
            ALIVE,
            Term::Minus(&Term::TipDistance),
            Term::Minus(&Term::TipSpeed),
        ],
        info: info::DOUBLE_PENDULUM_5,
        start: NOISY_NORMAL,
        ..DOUBLE_4
    },
];
