"""Word lists of the grammar: prepositions, nouns of places and times, things that are no place, and style words."""

from __future__ import annotations


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLACES = _set(
    "beach beaches desert snow meadow mountain mountains forest forrest forests woods wood city cities cloud "
    "clouds room rooms water underwater sea seas ocean oceans lake river rivers pond stream waterfall waterfalls "
    "pool swamp shore seashore coast coastline island reef seabed waves street streets road roads roadside "
    "highway alley avenue sidewalk path pathway track trail bridge tunnel crossing intersection square plaza park "
    "parks playground garden gardens yard backyard courtyard lawn farm farmland field fields grass grassland "
    "grasslands savannah savanna prairie plain plains steppe tundra jungle rainforest valley canyon cliff cliffs "
    "hill hills hillside peak summit volcano cave caves cavern wasteland ruins ground floor earth soil sand dunes "
    "dune mud dirt rock rocks sky skies space moon mars planet planets galaxy universe cosmos void orbit "
    "atmosphere horizon heaven hell paradise underworld house houses home apartment mansion cottage cabin hut "
    "palace castle castles temple church cathedral mosque shrine monastery museum library school classroom "
    "university campus college office offices building buildings skyscraper skyscrapers tower rooftop roof "
    "balcony terrace porch garage basement attic kitchen bedroom bathroom livingroom hallway hall corridor stairs "
    "staircase lobby studio studios stage theater theatre cinema arena stadium court gym club nightclub bar pub "
    "tavern cafe restaurant diner hotel store shop supermarket market mall bank hospital clinic laboratory lab "
    "factory warehouse workshop prison jail cell dungeon airport station subway harbor harbour port dock pier "
    "deck battlefield ring circus festival carnival fair party rave concert crowd ballroom dancefloor disco "
    "casino village villages town towns downtown neighborhood neighbourhood suburb ghetto slum countryside "
    "country kingdom world land landscape landscapes scenery nature wilderness environment surroundings cityscape "
    "skyline metropolis cemetery graveyard tomb pyramid pyramids colosseum campfire fireplace battleground runway "
    "catwalk spaceship spacecraft ship boat train bus plane cockpit submarine tent igloo barn stable zoo aquarium "
    "greenhouse vineyard orchard canopy treetops iceberg ice glacier arctic antarctica shower bath bathtub "
    "jacuzzi sauna windowsill wonderland dreamland dimension realm metaverse backrooms maze labyrinth bottom "
    "surface interior exterior background backdrop backround foreground mountaintop waterpark farmhouse courtroom "
    "bakery bookstore salon spa pitch clearing bush bushes trees corner doorway entrance darkness shadows flames "
    "gorge oasis bay lagoon marsh creek riverbank lakeside seaside parking kindergarten pagoda dojo colony "
    "outpost lair headquarters chamber suite quarry junkyard scrapyard bunker trenches trench venice paris london "
    "tokyo york nyc egypt india japan china rome vegas angeles dubai moscow africa america europe russia hawaii "
    "iceland italy france brazil mexico california texas berlin hollywood canada ukraine pakistan turkey greece "
    "spain germany korea usa uk miami chicago amazon everest himalaya himalayas sahara goa mumbai delhi istanbul "
    "playa bosque ciudad mar calle daytime nighttime"
)
"""Nouns of places: a phrase with one of them names a background, unless a word of THINGS is its head."""

TIMES = _set(
    "day days daylight night nights midnight morning noon afternoon evening dusk dawn sunset sunrise twilight "
    "moonlight sunlight sunshine sun starlight dark rain rainy storm thunderstorm thunder lightning snowfall "
    "blizzard snowstorm wind breeze weather winter summer spring autumn fall season christmas halloween century "
    "future past 1800s 1900s 1920s 1930s 1940s 1950s 1960s 1970s 1980s 1990s stars moonbeams smoke fog mist "
    "daytime nighttime war"
)
"""Nouns of times, light and weather: they name a background where no place does."""

THINGS = _set(
    "hand hands arm arms head heads face faces hair eye eyes mouth lips neck shoulder shoulders chest back lap "
    "leg legs foot feet body bodies finger fingers forehead tail wings skin fur suit suits dress dresses clothes "
    "clothing outfit costume costumes uniform armor armour robe robes cloak coat jacket shirt tshirt hoodie "
    "sweater skirt saree gown hat cap helmet helmets mask masks glasses sunglasses shoes boots gloves jumpsuit "
    "spacesuit crown hood attire gear swimsuit bikini kimono turban scarf tie pants jeans bag basket box cup "
    "glass bottle bowl plate jar cage book paper map phone computer laptop keyboard screen tv monitor camera "
    "mirror guitar piano drums violin microphone sword gun rifle stick pole rope chair armchair throne stool sofa "
    "couch bench table desk bed horse bike bicycle motorcycle scooter skateboard broom dragon unicorn camel "
    "wheelchair swing youtube video movie film scene shot image picture frame photo animation cartoon game style "
    "manner mode motion action slowmotion speed pace direction directions love pain fear panic peace awe joy "
    "anger surprise silence harmony tears circle circles line lines row shape form colour color colors colours "
    "black white red blue green silhouette detail details focus quality resolution hd uhd 4k 8k 3d 2d realistic "
    "anime cgi vhs portrait profile pose position order time times way case fact need trouble danger hurry half "
    "pieces unison sync synch meditation battle fight argument conversation fire viewer viewers audience other "
    "others it him her me them you us left right side sides centre center middle top front end beginning life "
    "death reality mind dream dreams imagination public private person general common particular search sight "
    "least last first once all cinematic realism fashion character instrument instruments wheel wheels pedal "
    "steering microscope telescope cards card purple pink yellow orange brown grey gray gold golden silver"
)
"""Heads of phrases that name no background: parts of a body, clothes, things one holds, manners, styles."""

POSITIONS = ("left", "right", "middle", "centre", "center", "left side", "right side")
"""`on the left`, `in the middle` without `of`: where the object is, not where the scene is."""

PREPOSITIONS = (
    "in the middle of", "in a middle of", "in the center of", "in the centre of", "in the heart of", "at the edge of",
    "on the edge of", "at the bottom of", "at the top of", "on the top of", "on top of", "in top of", "in front of",
    "at the end of", "on the side of", "by the side of", "inside of", "outside of", "next to", "close to", "out of",
    "in the background of", "in", "on", "at", "inside", "outside", "under", "underneath", "beneath", "below", "above",
    "over", "near", "nearby", "beside", "behind", "between", "among", "amongst", "amid", "amidst", "around", "through",
    "throughout", "across", "along", "alongside", "down", "up", "against", "towards", "toward", "into", "onto", "upon",
    "within", "by", "during", "from", "to", "with", "without", "for", "of", "off", "about", "like", "past",
)  # fmt: skip
"""Longest first where one begins another. Of them, only those of WHERE can begin a background."""

NEVER = _set("of for about like without to off out") | {"out of"}
"""Prepositions that begin no background."""
SELDOM = _set("from with by up into onto against")
"""Prepositions that begin a background only before a sure noun of a place: "from the sky", not "from a box"."""
ONLY_PLACES = frozenset(PREPOSITIONS) & _set(
    "inside outside under underneath beneath below above over near nearby beside behind among amongst amid amidst "
    "throughout across along through down around within during"
)
"""Prepositions whose unknown nouns are places too; `in`, `on` and `at` also begin manners and things."""

ADVERBS = _set("underwater outdoors outside indoors inside downtown offshore upstairs downstairs")
"""Words that are a background on their own."""

STOPS = _set(
    "as while when who whom whose which that where because and but or then if until looking like wearing holding "
    "is are was were has have"
)
"""Words that end the noun phrase after a preposition."""

MEDIA = _set(
    "video videos clip footage film movie shot shots scene scenes view views closeup close-up closeups timelapse "
    "time-lapse animation animations recreation image images picture pictures photo photos photograph photography "
    "painting paintings sketch sketches drawing drawings render renders rendering art graphics watercolour "
    "watercolor portrait portraits polaroid illustration illustrations sequence visualization trailer commercial "
    "documentary short gif clips poster zoom perspective cinematography screenshot depiction reel profile"
)
"""Nouns before `of`, `where`, `showing` in a frame such as "a video of"."""

OF = _set("of where showing featuring with depicting about from in")

ORDERS = _set(
    "create make generate animate produce design draw build render show give imagine video videos clip please can "
    "could you me a an the ai prompt scene introduce add i want need to"
)
"""Words that open an instruction: "create a video of", "generate ai video"."""

STYLE = _set(
    "style styled styles stylized cinematic realistic realism photorealistic hyperrealistic hyper-realistic ultra "
    "ultra-realistic ultrarealistic hyper hd uhd fullhd 4k 8k 2k 6k 10k 12k 16k 32k 1080p 720p 60fps 24fps 30fps "
    "fps hdr 3d 2d 16mm 35mm 70mm 50mm 8mm mm k cgi vfx octane unreal engine render rendered rendering raytracing "
    "ray-tracing tracing detailed details detail intricate resolution quality masterpiece artstation trending "
    "deviantart lens arri alexa camera cam flycam drone aerial shot shots wide wide-angle angle closeup close-up "
    "zoom zooming pan panning bokeh depth focus sharp blurred lighting light volumetric ambient dramatic mood "
    "moody atmospheric colour color colored colorful colours colors colourful colorfull vivid vibrant saturated "
    "contrast monochrome bw anime manga cartoon pixar disney ghibli miyazaki studio noir film movie animation "
    "animated animate claymation stop-motion stopmotion timelapse hyperlapse slow slow-motion motion fast loop "
    "looping art artwork artistic illustration drawing drawn sketch painting painted watercolour watercolor pixel "
    "pixelated 8-bit 16-bit graphics graphic pencil retro vintage vhs grainy grain polaroid photo photograph "
    "photography photographic dslr nikon canon fujifilm kodak surreal surrealism surrealistic abstract "
    "psychedelic psychedelia vaporwave cyberpunk steampunk synthwave lofi minimalist minimalism minimalistic "
    "aesthetic aesthetics 70s 80s 90s 60s picture image portrait fullbody full-body visuals visual effect effects "
    "fx hyperdetailed highly high extremely super epic professional award-winning symmetrical composition long "
    "medium extreme shallow view shoot scale 9:16 16:9 ar hyperrealism photo-realistic lifelike footage "
    "documentary transition text remove smooth movement movements subtle seamless sfx music soundtrack seconds "
    "sec directed director kubrick tarantino nolan spielberg burton beksinski photoreal"
)
"""Words of a clause about style, quality or camera."""

ENGLISH = _set("a an the of in on at with and is are to his her by for from into while who that their its as it")
OTHER_LANGUAGES = _set(
    "el la los las un una unos de del que por en con para su y se nos um uma da dos das com os o e na numa le les "
    "des du et dans avec est sur pour der die ein eine und mit im auf ist il lo gli di che per nel ek ka ki ke "
    "mein hai aur ko par je w z yang dan"
)
"""Small words that show which language a prompt has."""

SMALL = _set("a an the this that these those his her its their my your our some any one two three of and in on by")
"""Words that decide nothing about a clause."""
